// Lifecycle calls take time, and the group may be lost meanwhile: requests never stand still behind a call,
// and a call that a loss interrupts is done all the same.

#include <gtest/gtest.h>

#include <future>

#include "tests/engine/engine_test_util.h"

namespace somnus {
namespace {

using Recovery = FakeExecutor::Recovery;
using Result = absl::StatusOr<TransitionReport>;

const absl::Status kLoss = absl::UnavailableError("rank 1 (pid 77) was killed by signal 9 (Killed)");

class EngineLifecycleTest : public ::testing::Test {
 protected:
  EngineLifecycleTest() : options_(SmallEngine()), executor_(SmallWorker(options_)) {
    executor_.SetRecovery(Recovery::kSucceeds);
  }
  void AwaitState(EngineState state) {
    while (engine_.state() != state) absl::SleepFor(absl::Milliseconds(1));
  }
  // Waits until that many lifecycle calls were made.
  void AwaitCalls(size_t count) {
    while (executor_.lifecycle_calls().size() < count) absl::SleepFor(absl::Milliseconds(1));
  }
  std::future<Result> SleepAsync(int level) {
    return std::async(std::launch::async, [this, level] { return engine_.Sleep({.level = level}); });
  }
  std::future<Result> WakeUpAsync(const std::vector<std::string>& tags = {}) {
    return std::async(std::launch::async, [this, tags] { return engine_.WakeUp(tags); });
  }
  // A sleep that has reached the workers and ends once the workers are no longer held.
  std::future<Result> HeldSleep() {
    executor_.HoldLifecycle(true);
    std::future<Result> slept = SleepAsync(1);
    AwaitCalls(1);
    return slept;
  }
  // A held sleep, in the middle of which the group is lost.
  std::future<Result> SleepThatALossInterrupts() {
    executor_.SetRecovery(Recovery::kWaits);
    std::future<Result> slept = HeldSleep();
    executor_.Lose(kLoss);
    AwaitState(EngineState::kRecovering);
    return slept;
  }
  // A request that comes now gets all tokens, awake or after a wake-up.
  void ExpectServes() {
    const Ticket ticket = MakeTicket("last", 5, 20);
    ASSERT_TRUE(engine_.Submit(ticket.request).ok());
    ASSERT_TRUE(engine_.WakeUp({}).ok());
    ASSERT_TRUE(ticket.sink->Wait());
    EXPECT_EQ(ticket.sink->tokens(), Reference(ticket));
    EXPECT_EQ(engine_.state(), EngineState::kAwake);
    EXPECT_EQ(engine_.Stats().used_blocks, 0);
  }

  const EngineOptions options_;
  FakeExecutor executor_;
  EngineLoop engine_{options_, &executor_, nullptr};
};

TEST_F(EngineLifecycleTest, AbortsAndDeadlinesTakeEffectWhileACallIsUnderWay) {
  for (const bool wakes : {false, true}) {
    executor_.HoldLifecycle(true);
    std::future<Result> call = wakes ? WakeUpAsync() : SleepAsync(1);
    AwaitState(wakes ? EngineState::kWaking : EngineState::kFallingAsleep);
    const Ticket aborted = MakeTicket("a", 5, 20);
    Ticket expired = MakeTicket("b", 5, 20);
    expired.request.deadline = MonotonicNow() + absl::Milliseconds(5);
    ASSERT_TRUE(engine_.Submit(aborted.request).ok());
    ASSERT_TRUE(engine_.Submit(expired.request).ok());
    engine_.Abort("a");
    ASSERT_TRUE(aborted.sink->Wait());
    EXPECT_EQ(aborted.sink->reason(), FinishReason::kAbort);
    ASSERT_TRUE(expired.sink->Wait());
    EXPECT_TRUE(absl::IsDeadlineExceeded(expired.sink->error()));
    EXPECT_EQ(engine_.state(), wakes ? EngineState::kWaking : EngineState::kFallingAsleep);
    executor_.HoldLifecycle(false);
    EXPECT_TRUE(call.get().ok());
  }
  ExpectServes();
}

TEST_F(EngineLifecycleTest, APreemptedRequestIsAbortedWhileTheEngineFallsAsleep) {
  const Ticket running = MakeTicket("a", 5, 150);
  executor_.HoldLifecycle(true);
  ASSERT_TRUE(engine_.Submit(running.request).ok());
  ASSERT_TRUE(running.sink->WaitForTokens(2));
  std::future<Result> slept = SleepAsync(1);
  AwaitCalls(1);
  engine_.Abort("a");
  ASSERT_TRUE(running.sink->Wait());
  executor_.HoldLifecycle(false);
  EXPECT_TRUE(slept.get().ok());
  ExpectServes();
}

TEST_F(EngineLifecycleTest, CallsAreDoneInTheirOrder) {
  std::future<Result> slept = HeldSleep();
  std::future<Result> woke = WakeUpAsync();
  executor_.HoldLifecycle(false);
  EXPECT_EQ(slept.get()->freed_bytes().size(), 3u);
  // The wake-up came during the sleep; a wake-up before the sleep would have had nothing to do.
  EXPECT_EQ(woke.get()->mapped_bytes().size(), 3u);
  EXPECT_EQ(engine_.state(), EngineState::kAwake);
  EXPECT_EQ(executor_.lifecycle_calls(),
            (std::vector<std::string>{"sleep 1", "wake kv_cache weights workspace"}));
}

TEST_F(EngineLifecycleTest, ALossOnTheWayToSleep) {
  std::future<Result> slept = HeldSleep();
  executor_.Lose(kLoss);
  AwaitCalls(2);
  EXPECT_EQ(executor_.recoveries(), std::vector<std::string>{"awake"});
  executor_.HoldLifecycle(false);
  const Result freed = slept.get();
  ASSERT_TRUE(freed.ok()) << freed.status();
  EXPECT_EQ(freed->freed_bytes().size(), 3u);
  EXPECT_EQ(engine_.state(), EngineState::kAsleep);
  EXPECT_EQ(executor_.lifecycle_calls(), (std::vector<std::string>{"sleep 1", "sleep 1"}));
  ExpectServes();
}

TEST_F(EngineLifecycleTest, ALossWhileTheLastStepBeforeASleepIsUnderWay) {
  executor_.Hold(true);
  const Ticket running = MakeTicket("a", 5, 50);
  ASSERT_TRUE(engine_.Submit(running.request).ok());
  while (executor_.num_waits() == 0) absl::SleepFor(absl::Milliseconds(1));
  std::future<Result> slept = SleepAsync(1);
  executor_.Lose(kLoss);
  executor_.Hold(false);
  ASSERT_TRUE(slept.get().ok());
  EXPECT_EQ(engine_.state(), EngineState::kAsleep);
  EXPECT_EQ(executor_.lifecycle_calls().size(), 1u);
  ASSERT_TRUE(engine_.WakeUp({}).ok());
  ASSERT_TRUE(running.sink->Wait());
  EXPECT_EQ(running.sink->tokens(), Reference(running));
}

TEST_F(EngineLifecycleTest, ALossAsleep) {
  ASSERT_TRUE(engine_.Sleep({.level = 1}).ok());
  executor_.SetRecovery(Recovery::kWaits);
  executor_.Lose(kLoss);
  AwaitState(EngineState::kRecovering);
  EXPECT_EQ(engine_.Stats().sleep_level, 1) << "the survivors still sleep";
  EXPECT_EQ(executor_.recoveries(), std::vector<std::string>{"asleep 1 kv_cache weights workspace"});
  executor_.FinishRecovery(absl::OkStatus());
  AwaitState(EngineState::kAsleep);
  ExpectServes();
}

// A loss during a later wake-up does not take away the tags that an earlier wake-up brought back.
TEST_F(EngineLifecycleTest, ALossOnTheWayToWakeUp) {
  ASSERT_TRUE(engine_.Sleep({.level = 2}).ok());
  ASSERT_TRUE(engine_.WakeUp({"weights"}).ok());
  executor_.HoldLifecycle(true);
  std::future<Result> woke = WakeUpAsync({"kv_cache"});
  AwaitCalls(3);
  executor_.Lose(kLoss);
  AwaitCalls(4);
  EXPECT_EQ(executor_.recoveries(), std::vector<std::string>{"asleep 1 kv_cache workspace"});
  executor_.HoldLifecycle(false);
  const Result mapped = woke.get();
  ASSERT_TRUE(mapped.ok()) << mapped.status();
  EXPECT_EQ(mapped->mapped_bytes(), (TagBytes{{"kv_cache", 100}, {"workspace", 300}}));
  EXPECT_EQ(mapped->tags, (std::map<std::string, TagOutcome>{{"kv_cache", {TagState::kResident, true}},
                                                             {"workspace", {TagState::kResident, true}}}));
  EXPECT_EQ(engine_.state(), EngineState::kAwake);
  ExpectServes();
  EXPECT_EQ(executor_.lifecycle_calls().back(), "wake kv_cache workspace");
}

TEST_F(EngineLifecycleTest, ACallThatIsInterruptedTooOftenIsGivenUp) {
  ASSERT_TRUE(engine_.Sleep({.level = 1}).ok());
  executor_.HoldLifecycle(true);
  std::future<Result> slept = SleepAsync(2);
  for (size_t loss = 0; loss < 4; ++loss) {
    AwaitCalls(2 + loss);
    executor_.Lose(kLoss);
  }
  EXPECT_EQ(slept.get().status(), kLoss) << "after three interruptions it is given up";
  AwaitState(EngineState::kAsleep);
  EXPECT_EQ(engine_.Stats().sleep_level, 1);
  executor_.HoldLifecycle(false);
  ExpectServes();
}

// All ranks are brought to the call's aim, and the caller gets the result.
TEST_F(EngineLifecycleTest, ALossAfterTheCallWasCommitted) {
  std::future<Result> slept = HeldSleep();
  executor_.Commit();
  executor_.Lose(kLoss);
  const Result freed = slept.get();
  ASSERT_TRUE(freed.ok()) << freed.status();
  EXPECT_EQ(freed->tags.at("weights"), (TagOutcome{TagState::kBackedUp, true}));
  EXPECT_EQ(engine_.state(), EngineState::kAsleep);
  std::future<Result> deepened = SleepAsync(2);
  AwaitCalls(2);
  executor_.Commit();
  executor_.Lose(kLoss);
  EXPECT_EQ(deepened.get()->tags.at("weights"), (TagOutcome{TagState::kDiscarded, true}));
  std::future<Result> woke = WakeUpAsync({"weights"});
  AwaitCalls(3);
  executor_.Commit();
  executor_.Lose(kLoss);
  EXPECT_EQ(woke.get()->tags.at("weights"), (TagOutcome{TagState::kResident, true}));
  EXPECT_EQ(executor_.recoveries(),
            (std::vector<std::string>{"asleep 1 kv_cache weights workspace",
                                      "asleep 2 kv_cache weights workspace", "asleep 1 kv_cache workspace"}));
  executor_.HoldLifecycle(false);
  ExpectServes();
  EXPECT_EQ(executor_.lifecycle_calls(),
            (std::vector<std::string>{"sleep 1", "sleep 2", "wake weights", "wake kv_cache workspace"}));
}

// The caller has to know that requests must wake the engine now.
TEST_F(EngineLifecycleTest, ASleepOfAnIdleEngineThatWasCommittedHasHappened) {
  executor_.HoldLifecycle(true);
  std::future<Result> slept =
      std::async(std::launch::async, [&] { return engine_.Sleep({.only_if_idle = true}); });
  AwaitCalls(1);
  executor_.Commit();
  executor_.Lose(kLoss);
  const Result result = slept.get();
  EXPECT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(engine_.state(), EngineState::kAsleep);
  executor_.HoldLifecycle(false);
  EXPECT_TRUE(absl::IsAborted(engine_.Sleep({.level = 2, .only_if_idle = true}).status()))
      << "an engine that sleeps is not idle";
  ExpectServes();
}

TEST_F(EngineLifecycleTest, AResultThatComesAfterTheRecoveryIsNotThatOfTheNextCall) {
  executor_.SetLateResults(true);
  std::future<Result> slept = HeldSleep();
  executor_.Lose(kLoss);
  AwaitCalls(2);
  executor_.HoldLifecycle(false);  // an error of the first epoch, then the second call's result
  const Result freed = slept.get();
  ASSERT_TRUE(freed.ok()) << freed.status();
  EXPECT_EQ(engine_.state(), EngineState::kAsleep);
  ExpectServes();
}

TEST_F(EngineLifecycleTest, ACallThatCameDuringTheRecoveryWaitsBehindTheInterruptedOne) {
  std::future<Result> slept = SleepThatALossInterrupts();
  std::future<Result> woke = WakeUpAsync();
  executor_.FinishRecovery(absl::OkStatus());
  AwaitCalls(2);
  executor_.HoldLifecycle(false);
  EXPECT_EQ(slept.get()->freed_bytes().size(), 3u);
  woke.get().IgnoreError();
  EXPECT_EQ(executor_.lifecycle_calls()[1], "sleep 1");
  ExpectServes();
}

TEST_F(EngineLifecycleTest, ALossBetweenTheEndOfARecoveryAndItsNews) {
  executor_.SetRecovery(Recovery::kWaits);
  executor_.Lose(kLoss);
  AwaitState(EngineState::kRecovering);
  executor_.LoseAtOnce(absl::UnavailableError("rank 0 (pid 5) ended"));
  while (executor_.recoveries().size() < 2) absl::SleepFor(absl::Milliseconds(1));
  executor_.FinishRecovery(absl::OkStatus());
  AwaitState(EngineState::kAwake);
  EXPECT_EQ(engine_.Stats().num_recoveries, 2);
  ExpectServes();
}

TEST_F(EngineLifecycleTest, ADrainEndsACallThatIsUnderWay) {
  std::future<Result> slept = HeldSleep();
  std::future<Result> woke = WakeUpAsync();
  engine_.DrainAndStop(absl::Minutes(10));
  EXPECT_FALSE(slept.get().ok());
  EXPECT_FALSE(woke.get().ok());
  executor_.HoldLifecycle(false);  // the result comes when nobody waits any more
}

TEST_F(EngineLifecycleTest, ADrainAbortsRequestsThatWaitBehindACallAtTheEndOfItsGrace) {
  std::future<Result> slept = HeldSleep();
  const Ticket ticket = MakeTicket("a", 5, 20);
  ASSERT_TRUE(engine_.Submit(ticket.request).ok());
  engine_.DrainAndStop(absl::Milliseconds(5));
  EXPECT_EQ(ticket.sink->reason(), FinishReason::kAbort);
  EXPECT_FALSE(slept.get().ok());
}

TEST_F(EngineLifecycleTest, ADrainEndsACallThatALossHasInterrupted) {
  std::future<Result> slept = SleepThatALossInterrupts();
  engine_.DrainAndStop(absl::Minutes(10));
  EXPECT_FALSE(slept.get().ok());
}

TEST_F(EngineLifecycleTest, ARecoveryThatFailsEndsTheCallWithTheReason) {
  std::future<Result> slept = SleepThatALossInterrupts();
  executor_.FinishRecovery(absl::UnavailableError("rank 1 could not be replaced"));
  EXPECT_EQ(slept.get().status().message(), "rank 1 could not be replaced");
  EXPECT_EQ(engine_.state(), EngineState::kFailed);
}

}  // namespace
}  // namespace somnus
