// Pauses, and the fate of open requests at a pause or a sleep: abort, wait, keep.

#include <gtest/gtest.h>

#include <future>

#include "tests/engine/engine_test_util.h"

namespace somnus {
namespace {

using Recovery = FakeExecutor::Recovery;

const absl::Status kLoss = absl::UnavailableError("rank 1 (pid 77) was killed by signal 9 (Killed)");

// Steps take a while, so that a request of many tokens is open when something is called.
class SlowSteps : public RecordingObserver {
 public:
  void OnStep(const StepEvent& event) override {
    RecordingObserver::OnStep(event);
    absl::SleepFor(absl::Milliseconds(1));
  }
};

class EnginePauseTest : public ::testing::Test {
 protected:
  EnginePauseTest() : options_(SmallEngine()), executor_(SmallWorker(options_)) {
    executor_.SetRecovery(Recovery::kSucceeds);
  }
  void AwaitState(EngineState state) {
    while (engine_.state() != state) absl::SleepFor(absl::Milliseconds(1));
  }
  // When Barrier returns, the loop has looked at everything that was sent before.
  void Barrier() { EXPECT_TRUE(engine_.ResetPrefixCache(false).ok()); }
  Ticket Submit(const std::string& id, int32_t max_tokens, int32_t first = 1) {
    Ticket ticket = MakeTicket(id, 5, max_tokens, first);
    EXPECT_TRUE(engine_.Submit(ticket.request).ok());
    return ticket;
  }
  void ExpectExact(const Ticket& ticket) {
    ASSERT_TRUE(ticket.sink->Wait());
    EXPECT_EQ(ticket.sink->reason(), FinishReason::kLength) << ticket.sink->error();
    EXPECT_EQ(ticket.sink->tokens(), Reference(ticket));
    EXPECT_EQ(ticket.sink->outputs_after_end(), 0);
  }
  // Returns a request with tokens that is open while the engine is paused.
  Ticket PauseWhileOpen(const PauseRequest& pause) {
    for (int i = 0;; ++i) {
      Ticket ticket = Submit(absl::StrCat("open", i), 150);
      EXPECT_TRUE(ticket.sink->WaitForTokens(2));
      EXPECT_TRUE(engine_.Pause(pause).ok());
      if (!ticket.sink->done() || pause.mode == SleepMode::kAbort) return ticket;
      EXPECT_TRUE(engine_.Resume().ok());
    }
  }
  // Makes a call that waits for open requests, and returns during that wait, with an open request.
  struct Waiting {
    Ticket open;
    std::future<absl::Status> call;
  };
  Waiting StartWaiting(const std::function<absl::Status()>& call) {
    for (int i = 0;; ++i) {
      Waiting waiting{Submit(absl::StrCat("open", i), 180), {}};
      EXPECT_TRUE(waiting.open.sink->WaitForTokens(2));
      waiting.call = std::async(std::launch::async, call);
      while (waiting.call.wait_for(std::chrono::milliseconds(1)) != std::future_status::ready) {
        if (engine_.state() == EngineState::kPausing) return waiting;
      }
      // The request had ended before.
      EXPECT_TRUE(waiting.call.get().ok());
      EXPECT_TRUE(engine_.WakeUp({}).ok());
    }
  }
  Waiting StartWaitingPause() {
    return StartWaiting([this] { return engine_.Pause({.mode = SleepMode::kWait}); });
  }

  const EngineOptions options_;
  FakeExecutor executor_;
  SlowSteps observer_;
  EngineLoop engine_{options_, &executor_, &observer_};
};

TEST_F(EnginePauseTest, WhatIsOpenStopsAndGoesOnWithTheSameTokens) {
  for (const bool clear_cache : {false, true}) {
    const int64_t preemptions = engine_.Stats().num_preemptions;
    const Ticket open = PauseWhileOpen({.clear_cache = clear_cache});
    EXPECT_EQ(engine_.state(), EngineState::kPaused);
    EXPECT_EQ(What(engine_.Health()), "The engine is paused; requests wait until it is resumed.");
    EXPECT_EQ(engine_.Stats().num_preemptions > preemptions, clear_cache);
    const int64_t steps = executor_.num_steps_sent();
    const Ticket arrived = Submit("arrived", 5, 50);
    Barrier();
    EXPECT_EQ(executor_.num_steps_sent(), steps);
    EXPECT_EQ(engine_.Stats().num_running + engine_.Stats().num_waiting, 2);
    ASSERT_TRUE(engine_.Resume().ok());
    EXPECT_EQ(engine_.state(), EngineState::kAwake);
    ExpectExact(open);
    ExpectExact(arrived);
  }
  EXPECT_TRUE(executor_.lifecycle_calls().empty()) << "memory is not touched";
}

TEST_F(EnginePauseTest, AbortEndsWhatIsOpen) {
  const Ticket open = PauseWhileOpen({.mode = SleepMode::kAbort});
  ASSERT_TRUE(open.sink->Wait());
  EXPECT_EQ(engine_.state(), EngineState::kPaused);
  const Ticket queued = Submit("queued", 5);
  ASSERT_TRUE(engine_.Pause({.mode = SleepMode::kAbort}).ok());
  ASSERT_TRUE(queued.sink->Wait());
  EXPECT_EQ(queued.sink->reason(), FinishReason::kAbort);
  EXPECT_TRUE(queued.sink->tokens().empty());
  ASSERT_TRUE(engine_.Resume().ok());
  ExpectExact(Submit("after", 5));
}

TEST_F(EnginePauseTest, WaitLetsWhatIsOpenEndAndHoldsBackWhatArrives) {
  Waiting waiting = StartWaitingPause();
  EXPECT_EQ(What(engine_.Health()), "The engine is about to pause; requests wait until it is resumed.");
  const Ticket arrived = Submit("arrived", 5, 50);
  const Ticket aborted = Submit("aborted", 5);
  Ticket expired = MakeTicket("expired", 5, 5);
  expired.request.deadline = MonotonicNow() + absl::Milliseconds(2);
  ASSERT_TRUE(engine_.Submit(expired.request).ok());
  engine_.Abort("aborted");
  ASSERT_TRUE(aborted.sink->Wait());
  EXPECT_EQ(aborted.sink->reason(), FinishReason::kAbort);
  EXPECT_TRUE(aborted.sink->tokens().empty());
  ASSERT_TRUE(expired.sink->Wait());
  EXPECT_TRUE(absl::IsDeadlineExceeded(expired.sink->error()));
  EXPECT_TRUE(waiting.call.get().ok());
  EXPECT_EQ(engine_.state(), EngineState::kPaused);
  EXPECT_TRUE(waiting.open.sink->done());
  ExpectExact(waiting.open);
  Barrier();
  EXPECT_TRUE(arrived.sink->tokens().empty());
  EXPECT_EQ(engine_.Stats().num_waiting, 1);
  ASSERT_TRUE(engine_.Resume().ok());
  ExpectExact(arrived);
}

TEST_F(EnginePauseTest, ResumeAndWakeUpEndAWait) {
  for (const bool wakes : {false, true}) {
    Waiting waiting = StartWaitingPause();
    const Ticket arrived = Submit("arrived", 5, 50);
    EXPECT_TRUE(wakes ? engine_.WakeUp({}).ok() : engine_.Resume().ok());
    EXPECT_EQ(engine_.state(), EngineState::kAwake);
    const absl::Status ended = waiting.call.get();
    EXPECT_TRUE(ended.ok() || absl::IsAborted(ended)) << ended;
    ExpectExact(waiting.open);
    ExpectExact(arrived);
  }
}

TEST_F(EnginePauseTest, AnotherModeEndsAWait) {
  Waiting waiting = StartWaitingPause();
  ASSERT_TRUE(engine_.Pause({.mode = SleepMode::kAbort}).ok());
  EXPECT_EQ(engine_.state(), EngineState::kPaused);
  ASSERT_TRUE(waiting.open.sink->Wait());
  const absl::Status ended = waiting.call.get();
  EXPECT_TRUE(ended.ok() || absl::IsAborted(ended)) << ended;
}

TEST_F(EnginePauseTest, ASecondWaitJoinsTheFirst) {
  Waiting waiting = StartWaitingPause();
  ASSERT_TRUE(engine_.Pause({.mode = SleepMode::kWait}).ok());
  EXPECT_TRUE(waiting.call.get().ok());
  ExpectExact(waiting.open);
  EXPECT_EQ(engine_.state(), EngineState::kPaused);
}

TEST_F(EnginePauseTest, ALossDuringAWait) {
  Waiting waiting = StartWaitingPause();
  const Ticket arrived = Submit("arrived", 5, 50);
  executor_.Lose(kLoss);
  EXPECT_TRUE(waiting.call.get().ok());
  EXPECT_EQ(engine_.state(), EngineState::kPaused);
  ExpectExact(waiting.open);
  Barrier();
  EXPECT_TRUE(arrived.sink->tokens().empty());
  ASSERT_TRUE(engine_.Resume().ok());
  ExpectExact(arrived);
}

TEST_F(EnginePauseTest, ADrainEndsAWaitAndLetsRequestsEnd) {
  Waiting waiting = StartWaitingPause();
  const Ticket arrived = Submit("arrived", 5, 50);
  engine_.DrainAndStop(absl::Minutes(1));
  const absl::Status ended = waiting.call.get();
  EXPECT_TRUE(ended.ok() || absl::IsFailedPrecondition(ended)) << ended;
  ExpectExact(waiting.open);
  ASSERT_TRUE(arrived.sink->Wait());
}

TEST_F(EnginePauseTest, SleepWaits) {
  Waiting waiting = StartWaiting([this] { return engine_.Sleep({.mode = SleepMode::kWait}).status(); });
  const Ticket arrived = Submit("arrived", 5, 50);
  EXPECT_TRUE(waiting.call.get().ok());
  EXPECT_EQ(engine_.state(), EngineState::kAsleep);
  EXPECT_TRUE(waiting.open.sink->done());
  ExpectExact(waiting.open);
  EXPECT_TRUE(arrived.sink->tokens().empty());
  ASSERT_TRUE(engine_.WakeUp({}).ok());
  ExpectExact(arrived);
}

TEST_F(EnginePauseTest, SleepAborts) {
  const Ticket open = Submit("a", 190);
  ASSERT_TRUE(open.sink->WaitForTokens(2));
  ASSERT_TRUE(engine_.Sleep({.mode = SleepMode::kAbort}).ok());
  EXPECT_TRUE(open.sink->done());
  const Ticket queued = Submit("b", 5);
  ASSERT_TRUE(engine_.Sleep({.mode = SleepMode::kAbort}).ok()) << "it sleeps already";
  EXPECT_EQ(queued.sink->reason(), FinishReason::kAbort);
  ASSERT_TRUE(engine_.WakeUp({}).ok());
  ExpectExact(Submit("c", 5));
}

TEST_F(EnginePauseTest, APausedEngineDoesNotWaitForWhatCannotEnd) {
  const Ticket open = PauseWhileOpen({});
  ASSERT_TRUE(engine_.Pause({.mode = SleepMode::kWait}).ok());
  ASSERT_TRUE(engine_.Sleep({.mode = SleepMode::kWait}).ok());
  ASSERT_TRUE(engine_.WakeUp({}).ok());
  ExpectExact(open);
}

TEST_F(EnginePauseTest, APauseIsRememberedBesideWhatSleeps) {
  const Ticket open = PauseWhileOpen({});
  ASSERT_TRUE(engine_.Sleep({.level = 1}).ok());
  EXPECT_EQ(engine_.state(), EngineState::kAsleep);
  EXPECT_TRUE(engine_.Stats().paused);
  ASSERT_TRUE(engine_.WakeUp({"weights"}).ok());
  EXPECT_EQ(engine_.state(), EngineState::kAsleep);
  EXPECT_TRUE(engine_.Stats().paused);
  ASSERT_TRUE(engine_.Resume().ok());
  EXPECT_EQ(engine_.state(), EngineState::kAsleep) << "the cache is still away";
  EXPECT_FALSE(engine_.Stats().paused);
  ASSERT_TRUE(engine_.Pause({}).ok());
  ASSERT_TRUE(engine_.WakeUp({"kv_cache"}).ok());
  EXPECT_EQ(engine_.state(), EngineState::kAwake) << "with everything resident the pause ends";
  EXPECT_FALSE(engine_.Stats().paused);
  ExpectExact(open);
}

TEST_F(EnginePauseTest, TheTagSchedulingEndsAPauseAlone) {
  const Ticket open = PauseWhileOpen({});
  ASSERT_TRUE(engine_.WakeUp({kSchedulingTag}).ok());
  EXPECT_EQ(engine_.state(), EngineState::kAwake);
  ExpectExact(open);
  EXPECT_TRUE(executor_.lifecycle_calls().empty());
  ASSERT_TRUE(engine_.Pause({}).ok());
  ASSERT_TRUE(engine_.Sleep({}).ok());
  ASSERT_TRUE(engine_.WakeUp({"weights", kSchedulingTag}).ok());
  EXPECT_EQ(executor_.lifecycle_calls().back(), "wake weights");
  EXPECT_FALSE(engine_.Stats().paused);
  EXPECT_EQ(engine_.state(), EngineState::kAsleep);
}

TEST_F(EnginePauseTest, AFailedSleepLeavesAPausedEnginePaused) {
  const Ticket open = PauseWhileOpen({});
  executor_.FailNextLifecycleCall(absl::InternalError("rank 1: no"));
  EXPECT_TRUE(absl::IsInternal(engine_.Sleep({}).status()));
  EXPECT_EQ(engine_.state(), EngineState::kPaused);
  ASSERT_TRUE(engine_.Resume().ok());
  ExpectExact(open);
}

TEST_F(EnginePauseTest, ALossDoesNotEndAPause) {
  const Ticket open = PauseWhileOpen({.clear_cache = false});
  executor_.SetRecovery(Recovery::kWaits);
  executor_.Lose(kLoss);
  AwaitState(EngineState::kRecovering);
  const EngineStats stats = engine_.Stats();
  EXPECT_TRUE(IsSleeping(stats.state, stats.sleep_level, stats.paused));
  executor_.FinishRecovery(absl::OkStatus());
  AwaitState(EngineState::kPaused);
  ASSERT_TRUE(engine_.Resume().ok());
  ExpectExact(open);
}

TEST_F(EnginePauseTest, RequestsEndWhileTheEngineIsPaused) {
  ASSERT_TRUE(engine_.Pause({}).ok());
  const Ticket aborted = Submit("aborted", 5);
  Ticket expired = MakeTicket("expired", 5, 5);
  expired.request.deadline = MonotonicNow() + absl::Milliseconds(5);
  ASSERT_TRUE(engine_.Submit(expired.request).ok());
  engine_.Abort("aborted");
  ASSERT_TRUE(aborted.sink->Wait());
  EXPECT_EQ(aborted.sink->reason(), FinishReason::kAbort);
  EXPECT_TRUE(aborted.sink->tokens().empty());
  ASSERT_TRUE(expired.sink->Wait());
  EXPECT_TRUE(absl::IsDeadlineExceeded(expired.sink->error()));
  const Ticket drained = Submit("drained", 5);
  engine_.DrainAndStop(absl::Minutes(10));
  EXPECT_EQ(drained.sink->reason(), FinishReason::kAbort);
}

TEST_F(EnginePauseTest, AResumeDuringASleepIsDoneAfterIt) {
  ASSERT_TRUE(engine_.Pause({}).ok());
  executor_.HoldLifecycle(true);
  auto slept = std::async(std::launch::async, [this] { return engine_.Sleep({}).status(); });
  AwaitState(EngineState::kFallingAsleep);
  auto resumed = std::async(std::launch::async, [this] { return engine_.Resume(); });
  executor_.HoldLifecycle(false);
  EXPECT_TRUE(slept.get().ok());
  EXPECT_TRUE(resumed.get().ok());
  EXPECT_EQ(engine_.state(), EngineState::kAsleep);
  EXPECT_FALSE(engine_.Stats().paused);
}

TEST_F(EnginePauseTest, RequestsWakeTheEngineButEndNoPause) {
  ASSERT_TRUE(engine_.Sleep({}).ok());
  ASSERT_TRUE(engine_.Pause({}).ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(engine_.WakeForArrivals().status()));
  EXPECT_EQ(engine_.state(), EngineState::kAsleep);
  ASSERT_TRUE(engine_.Resume().ok());
  EXPECT_TRUE(engine_.WakeForArrivals()->changed());
  EXPECT_EQ(engine_.state(), EngineState::kAwake);
  Waiting waiting = StartWaitingPause();
  EXPECT_TRUE(absl::IsFailedPrecondition(engine_.WakeForArrivals().status())) << "it comes after the wait";
  EXPECT_TRUE(waiting.call.get().ok());
  ExpectExact(waiting.open);
}

TEST_F(EnginePauseTest, ASleepOfAnIdleEngineIsNoneOfABusyOne) {
  const SleepRequest idle = {.only_if_idle = true};
  const Ticket open = PauseWhileOpen({});
  EXPECT_TRUE(absl::IsAborted(engine_.Sleep(idle).status()));
  EXPECT_EQ(engine_.state(), EngineState::kPaused);
  ASSERT_TRUE(engine_.Resume().ok());
  ExpectExact(open);
  EXPECT_TRUE(engine_.Sleep(idle).ok());
  EXPECT_EQ(engine_.state(), EngineState::kAsleep);
}

TEST_F(EnginePauseTest, AResetThatPreemptsFreesEveryBlock) {
  const Ticket open = PauseWhileOpen({.clear_cache = false});
  EXPECT_GT(engine_.Stats().used_blocks, 0);
  ASSERT_TRUE(engine_.ResetPrefixCache(/*preempt_running=*/true).ok());
  EXPECT_EQ(engine_.Stats().used_blocks, 0);
  ASSERT_TRUE(engine_.Resume().ok());
  ExpectExact(open);
}

TEST_F(EnginePauseTest, TheObserverIsToldOfTransitions) {
  class Transitions : public RecordingObserver {
   public:
    void OnTransition(const TransitionEvent& event) override {
      seen.push_back(absl::StrCat(event.wakes ? "wake " : "sleep ", event.level));
    }
    std::vector<std::string> seen;  // read when the loop has stopped
  };
  Transitions transitions;
  FakeExecutor executor(SmallWorker(options_));
  EngineLoop engine(options_, &executor, &transitions);
  ASSERT_TRUE(engine.Sleep({.level = 2}).ok());
  ASSERT_TRUE(engine.Sleep({.level = 1}).ok()) << "nothing is done";
  ASSERT_TRUE(engine.WakeUp({"kv_cache"}).ok());
  ASSERT_TRUE(engine.WakeUp({}).ok());
  engine.DrainAndStop(absl::ZeroDuration());
  EXPECT_EQ(transitions.seen, (std::vector<std::string>{"sleep 2", "wake 2", "wake 0"}));
}

}  // namespace
}  // namespace somnus
