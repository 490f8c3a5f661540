// Calls that end early: the client leaves before the call has begun, or an operator ends the call.

#include <atomic>
#include <functional>
#include <future>

#include "coordinator/engine/caller.h"
#include "tests/engine/engine_weights_fixture.h"

namespace somnus {
namespace {

class EngineAbortTest : public EngineWeightsTest {
 protected:
  // Runs `call` on a new thread, for a client that leaves when left_ is set.
  template <typename Call>
  std::future<absl::Status> ForClient(Call call) {
    return std::async(std::launch::async, [this, call] {
      const CallerScope scope({.name = "the client", .has_left = [this] { return left_.load(); }});
      return call();
    });
  }
  void AwaitState(EngineState state) {
    while (engine_->state() != state) absl::SleepFor(absl::Milliseconds(1));
  }
  void AwaitWaiting(int32_t count) {
    while (engine_->Stats().lifecycle_call.num_waiting != count) absl::SleepFor(absl::Milliseconds(1));
  }
  void AwaitCall(const std::string& name) {
    const auto is_there = [&] {
      const Calls calls = executor_.lifecycle_calls();
      return !calls.empty() && calls.back() == name;
    };
    while (!is_there()) absl::SleepFor(absl::Milliseconds(1));
  }
  absl::Status Update() {
    auto update = engine_->BeginWeightUpdate({});
    if (!update.ok()) return update.status();
    return (*update)->Finish().status();
  }

  // Has a pause wait for an open request, and ends the wait by `end`; tries again where the request has
  // ended before.
  absl::Status EndWait(const std::function<void()>& end) {
    executor_.SetStepTime(absl::Milliseconds(1));
    for (int i = 0;; ++i) {
      left_ = false;
      Ticket open = MakeTicket(absl::StrCat("open", i), 5, 180);
      EXPECT_TRUE(engine_->Submit(open.request).ok());
      EXPECT_TRUE(open.sink->WaitForTokens(2));
      auto pause = ForClient([this] { return engine_->Pause({.mode = SleepMode::kWait}); });
      while (engine_->state() != EngineState::kPausing && !open.sink->done())
        absl::SleepFor(absl::Milliseconds(1));
      end();
      const absl::Status status = pause.get();
      EXPECT_TRUE(open.sink->Wait());
      EXPECT_EQ(open.sink->tokens(), Reference(open));
      if (!status.ok()) return status;
      EXPECT_TRUE(engine_->Resume().ok());
    }
  }

  std::atomic<bool> left_{false};
};

TEST_F(EngineAbortTest, ACallWhoseClientHasLeftBeforeItsTurnIsNotCarriedOut) {
  Start();
  executor_.HoldLifecycle(true);
  auto first = std::async(std::launch::async, [this] { return engine_->Sleep({.level = 1}).status(); });
  AwaitCall("sleep 1");
  auto sleep = ForClient([this] { return engine_->Sleep({.level = 2}).status(); });
  AwaitWaiting(1);
  auto reload = ForClient([this] { return engine_->ReloadWeights({}).status(); });
  AwaitWaiting(2);
  auto update = ForClient([this] { return engine_->BeginWeightUpdate({}).status(); });
  AwaitWaiting(3);
  left_ = true;
  // The waiting calls end while the first call goes on.
  EXPECT_EQ(sleep.get(), absl::CancelledError(kAbandoned));
  EXPECT_EQ(reload.get(), absl::CancelledError(kAbandoned));
  EXPECT_EQ(update.get(), absl::CancelledError(kAbandoned));
  executor_.HoldLifecycle(false);
  EXPECT_TRUE(first.get().ok());
  EXPECT_EQ(executor_.lifecycle_calls(), Calls{"sleep 1"});
}

TEST_F(EngineAbortTest, ACallThatHasBegunGoesOnWithoutItsClient) {
  Start();
  executor_.HoldLifecycle(true);
  auto sleep = ForClient([this] { return engine_->Sleep({.level = 1}).status(); });
  AwaitCall("sleep 1");
  left_ = true;
  executor_.HoldLifecycle(false);
  EXPECT_TRUE(sleep.get().ok());
  EXPECT_EQ(engine_->state(), EngineState::kAsleep);
}

TEST_F(EngineAbortTest, AWaitForOpenRequestsEndsWithItsClient) {
  Start();
  EXPECT_EQ(EndWait([this] { left_ = true; }), absl::CancelledError(kAbandoned));
  ExpectServes(1);
}

TEST_F(EngineAbortTest, AnOperatorEndsAWaitForOpenRequests) {
  Start();
  EXPECT_EQ(EndWait([this] { (void)engine_->AbortCall(); }), absl::AbortedError(kEndedByOperator));
  ExpectServes(1);
}

TEST_F(EngineAbortTest, OnlyAForcedSleepLosesTheOnlyCopyOfTheWeights) {
  Start();
  ASSERT_TRUE(engine_->Sleep({.level = 2}).ok()) << "a file has them";
  ASSERT_TRUE(engine_->WakeUp({}).ok());
  ASSERT_TRUE(Update().ok());
  EXPECT_EQ(engine_->Sleep({.level = 2}).status(), absl::FailedPreconditionError(kForceLosesOnlyCopy));
  EXPECT_EQ(engine_->Sleep({.level = 2, .tags = {"weights"}}).status(),
            absl::FailedPreconditionError(kForceLosesOnlyCopy));
  ExpectServes(2);
  EXPECT_TRUE(engine_->Sleep({.level = 2, .tags = {"kv_cache"}}).ok()) << "the weights stay";
  ASSERT_TRUE(engine_->WakeUp({}).ok());
  ASSERT_TRUE(engine_->Sleep({.level = 1}).ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(engine_->Sleep({.level = 2}).status())) << "nor does it deepen";
  ASSERT_TRUE(engine_->WakeUp({}).ok());
  ExpectServes(2);
  EXPECT_TRUE(engine_->Sleep({.level = 2, .force = true}).ok());
  EXPECT_TRUE(engine_->Stats().needs_weights);
  EXPECT_TRUE(engine_->Sleep({.level = 2}).ok()) << "there is nothing to lose any more";
}

TEST_F(EngineAbortTest, AnOperatorEndsAnUpdateInEachOfItsPhases) {
  Start();
  EXPECT_TRUE(absl::IsFailedPrecondition(engine_->AbortCall())) << "none is under way";
  auto update = engine_->BeginWeightUpdate({});
  ASSERT_TRUE(update.ok()) << update.status();
  EXPECT_TRUE((*update)->status().ok());
  EXPECT_EQ(engine_->Stats().lifecycle_call.name, "update_weights");
  EXPECT_TRUE(engine_->AbortCall().ok());
  EXPECT_TRUE(absl::IsAborted((*update)->status())) << (*update)->status();
  EXPECT_TRUE(absl::IsAborted((*update)->Send(Chunk("a"))));
  EXPECT_TRUE(absl::IsAborted((*update)->Finish().status()));
  EXPECT_EQ(engine_->Stats().lifecycle_call.name, "");
  ExpectStale();
  ASSERT_TRUE(engine_->ReloadWeights({}).ok());
  ExpectServes(2);
  for (const bool finishes : {false, true}) {
    executor_.HoldLifecycle(!finishes);
    auto changed = std::async(std::launch::async, [&] {
      auto begun = engine_->BeginWeightUpdate({});
      if (!begun.ok()) return begun.status();
      executor_.HoldLifecycle(true);
      return (*begun)->Finish().status();
    });
    AwaitCall(finishes ? "finish update as " + std::to_string(engine_->weights().version + 1)
                       : "begin update");
    EXPECT_TRUE(engine_->AbortCall().ok());
    EXPECT_EQ(changed.get(), absl::AbortedError(kEndedByOperator));
    executor_.HoldLifecycle(false);
    AwaitState(EngineState::kAsleep);
    ExpectStale();
    ASSERT_TRUE(engine_->ReloadWeights({}).ok());
  }
}

// A file system that hangs holds a wake-up for as long as a load may take.
TEST_F(EngineAbortTest, AnOperatorEndsAWakeUpThatReadsForEver) {
  Start();
  ASSERT_TRUE(engine_->Sleep({.level = 2}).ok());
  executor_.HoldLifecycle(true);
  auto wake = ForClient([this] { return engine_->WakeUp({}).status(); });
  AwaitState(EngineState::kWaking);
  auto pause = std::async(std::launch::async, [this] { return engine_->Pause({}); });
  AwaitWaiting(1);
  const LifecycleCallStats call = engine_->Stats().lifecycle_call;
  EXPECT_EQ(call.name, "wake_up");
  EXPECT_EQ(call.client, "the client");
  EXPECT_TRUE(engine_->AbortCall().ok());
  EXPECT_EQ(wake.get(), absl::AbortedError(kEndedByOperator));
  executor_.HoldLifecycle(false);
  EXPECT_TRUE(pause.get().ok()) << "it was next";
  EXPECT_EQ(executor_.recoveries(), std::vector<std::string>{"asleep 2 kv_cache weights workspace"});
  EXPECT_EQ(engine_->Stats().sleep_level, 2);
  ASSERT_TRUE(engine_->Resume().ok());
  ASSERT_TRUE(engine_->WakeUp({}).ok());
  ExpectServes(1);
}

TEST_F(EngineAbortTest, AnUpdateThatAnnouncesATensorThatTheModelLacksChangesNothing) {
  Start();
  EXPECT_EQ(engine_->BeginWeightUpdate({.tensors = {Chunk("a"), Chunk("c")}}).status(),
            absl::InvalidArgumentError("tensor c: the model has none of this name"));
  ExpectServes(1);
}

}  // namespace
}  // namespace somnus
