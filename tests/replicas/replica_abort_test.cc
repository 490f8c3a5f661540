// Calls of several replicas that wait, end early, or cannot be undone.

#include <atomic>
#include <future>

#include "coordinator/engine/caller.h"
#include "tests/replicas/replica_set_fixture.h"

namespace somnus {
namespace {

class ReplicaAbortTest : public ReplicaSetTest {
 protected:
  template <typename Call>
  std::future<absl::Status> Async(Call call) {
    return std::async(std::launch::async, call);
  }
  void AwaitCall(size_t replica) {
    Await([&] { return !executors_[replica]->lifecycle_calls().empty(); });
  }
};
INSTANTIATE_TEST_SUITE_P(Overlap, ReplicaAbortTest, ::testing::Bool());

TEST_P(ReplicaAbortTest, ACallWhoseClientHasLeftBeforeItsTurnIsNotCarriedOut) {
  Start();
  executors_[0]->HoldLifecycle(true);
  auto first = Async([&] { return set_->Sleep({.level = 1}).status(); });
  AwaitCall(0);
  std::atomic<bool> left{false};
  auto second = Async([&] {
    const CallerScope scope({.name = "client", .has_left = [&] { return left.load(); }});
    return set_->Sleep({.level = 2}).status();
  });
  Await([&] { return set_->Stats().lifecycle_call.num_waiting == 1; });
  EXPECT_EQ(set_->Stats().lifecycle_call.name, "sleep");
  left = true;
  EXPECT_EQ(second.get(), absl::CancelledError(kAbandoned));
  executors_[0]->HoldLifecycle(false);
  EXPECT_TRUE(first.get().ok());
  EXPECT_EQ(set_->Stats().sleep_level, 1);
}

// The grace of a roll may be a day.
TEST_P(ReplicaAbortTest, ARollThatWaitsForRequestsHoldsNobodyBack) {
  Start();
  for (const auto& executor : executors_) {
    executor->SetRecovery(Recovery::kSucceeds);
    executor->SetStepTime(absl::Milliseconds(50));
  }
  // The roll waits at the first replica, which has a request, and lets the pause have a turn there.
  std::vector<Ticket> tickets;
  while (tickets.size() < 20 && set_->Stats().replicas[0].num_requests == 0) {
    tickets.push_back(Submit(std::to_string(tickets.size()), 5, 190, 1 + 50 * tickets.size()));
    absl::SleepFor(absl::Milliseconds(2));
  }
  auto roll = Async([&] { return set_->Roll(absl::InfiniteDuration()); });
  Await([&] { return set_->Stats().lifecycle_call.name == "roll"; });
  ASSERT_TRUE(set_->Pause({.clear_cache = false}).ok()) << "which the roll, if it waits, outlives";
  EXPECT_EQ(set_->Roll(absl::ZeroDuration()), absl::FailedPreconditionError("another roll is under way"));
  EXPECT_TRUE(set_->AbortCall().ok());
  EXPECT_TRUE(absl::IsAborted(roll.get()));
  for (const auto& executor : executors_) executor->SetStepTime(absl::ZeroDuration());
  ASSERT_TRUE(set_->Resume().ok());
  EXPECT_TRUE(set_->Roll(absl::InfiniteDuration()).ok());
  ExpectExact(tickets);
}

TEST_P(ReplicaAbortTest, AnOperatorEndsAnUpdateOfAllReplicas) {
  Start();
  auto update = set_->BeginWeightUpdate({});
  ASSERT_TRUE(update.ok()) << update.status();
  EXPECT_TRUE(set_->AbortCall().ok());
  EXPECT_TRUE(absl::IsAborted((*update)->status()));
  update->reset();
  EXPECT_EQ(set_->state(), EngineState::kAsleep);
  EXPECT_TRUE(set_->ReloadWeights({}).ok());
  ExpectExact(SubmitMany(4));
  EXPECT_TRUE(absl::IsFailedPrecondition(set_->AbortCall()));
}

TEST_P(ReplicaAbortTest, OnlyAForcedSleepLosesTheOnlyCopyOfTheWeights) {
  Start();
  ASSERT_TRUE((*set_->BeginWeightUpdate({}))->Finish().ok());
  const std::vector<Ticket> tickets = SubmitMany(4);
  EXPECT_EQ(set_->Sleep({.level = 2, .mode = SleepMode::kAbort}).status(),
            absl::FailedPreconditionError(kForceLosesOnlyCopy));
  ExpectExact(tickets);
  EXPECT_TRUE(set_->Sleep({.level = 2, .force = true}).ok());
}

TEST_P(ReplicaAbortTest, TheErrorNamesTheReplicaThatCouldNotBeBroughtBack) {
  Start();
  executors_[1]->HoldLifecycle(true);
  auto sleep = Async([&] { return set_->Sleep({.level = 1}).status(); });
  AwaitReplica(0, EngineState::kAsleep);
  AwaitCall(1);
  executors_[0]->FailNextLifecycleCall(absl::ResourceExhaustedError("no memory to wake up"));
  executors_[1]->FailNextLifecycleCall(absl::ResourceExhaustedError("no host memory"));
  executors_[1]->HoldLifecycle(false);
  EXPECT_EQ(sleep.get(),
            absl::ResourceExhaustedError(
                "replica 1: no host memory; replica 0 is not what it was before, since it could not be "
                "brought back: no memory to wake up"));
  EXPECT_TRUE(set_->WakeUp({}).ok());
  ExpectExact(SubmitMany(4));
}

}  // namespace
}  // namespace somnus
