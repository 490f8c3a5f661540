// A replica that has failed is tried again, while the rest serve.

#include <atomic>
#include <thread>

#include "tests/replicas/replica_set_fixture.h"

namespace somnus {
namespace {

using ReplicaRetryTest = ReplicaSetTest;
INSTANTIATE_TEST_SUITE_P(Overlap, ReplicaRetryTest, ::testing::Bool());

TEST_P(ReplicaRetryTest, ItServesAgain) {
  Start(2, nullptr, {.first_pause = absl::Milliseconds(1)});
  executors_[0]->Lose(kLoss);
  const absl::Status no_worker = absl::UnavailableError("no worker came");
  std::vector<std::string> tries = {"awake"};
  for (int i = 0; i < 3; ++i) {
    Await([&] { return executors_[0]->recoveries() == tries; });
    AwaitReplica(0, EngineState::kRecovering);
    EXPECT_EQ(set_->state(), EngineState::kAwake);
    ExpectExact(SubmitMany(4));
    executors_[0]->FinishRecovery(no_worker);
    tries.push_back("restart");
  }
  Await([&] { return executors_[0]->recoveries() == tries; });
  EXPECT_EQ(set_->Stats().replicas[0].error, "no worker came");
  executors_[0]->FinishRecovery(absl::OkStatus());
  AwaitReplica(0, EngineState::kAwake);
  EXPECT_EQ(set_->Stats().replicas[0].error, "");
  EXPECT_EQ(set_->Stats().replicas[0].num_recoveries, 1);
  const int64_t before = set_->Stats().replicas[0].num_requests;
  ExpectExact(SubmitMany(8));
  EXPECT_GT(set_->Stats().replicas[0].num_requests, before);
}

TEST_P(ReplicaRetryTest, WorkersThatAreWellMayStay) {
  Start(2, nullptr, {.first_pause = absl::Milliseconds(1), .restart_workers = false});
  executors_[0]->Lose(kLoss);
  Await([&] { return !executors_[0]->recoveries().empty(); });
  executors_[0]->FinishRecovery(kLoss);
  Await([&] { return executors_[0]->recoveries().size() == 2; });
  EXPECT_EQ(executors_[0]->recoveries()[1], "awake");
  executors_[0]->FinishRecovery(absl::OkStatus());
  AwaitReplica(0, EngineState::kAwake);
}

// A replica that came back awake would take the memory that the sleep has freed.
TEST_P(ReplicaRetryTest, NotWhileTheEngineSleeps) {
  std::atomic<int64_t> seconds{1000};
  options_.monotonic_now = [&] { return absl::Seconds(seconds.load()); };
  Start(2, nullptr, {.first_pause = absl::Minutes(1)});
  executors_[0]->SetRecovery(Recovery::kFails);
  executors_[0]->Lose(kLoss);
  AwaitReplica(0, EngineState::kFailed);
  ASSERT_TRUE(set_->Sleep({.level = 1}).ok());
  seconds += 100;
  const Ticket waiting = Submit("1", 5, 10);  // wakes the thread that looks for due retries
  EXPECT_EQ(executors_[0]->recoveries().size(), 1u);
  EXPECT_EQ(set_->state(), EngineState::kAsleep);
  executors_[0]->SetRecovery(Recovery::kSucceeds);
  ASSERT_TRUE(set_->WakeUp({}).ok());
  AwaitReplica(0, EngineState::kAwake);
  EXPECT_EQ(executors_[0]->recoveries(), (std::vector<std::string>{"awake", "restart"}));
  ExpectExact({waiting});
  set_.reset();  // before the clock ends
}

// A sleep that comes during a try waits for the outcome, so that all replicas sleep.
TEST_P(ReplicaRetryTest, ASleepMeanwhileIsItsToo) {
  Start(2, nullptr, {.first_pause = absl::Milliseconds(1)});
  executors_[0]->Lose(kLoss);
  Await([&] { return !executors_[0]->recoveries().empty(); });
  executors_[0]->FinishRecovery(kLoss);
  Await([&] { return executors_[0]->recoveries().size() == 2; });
  std::thread sleep([&] { EXPECT_TRUE(set_->Sleep({.level = 1}).ok()); });
  AwaitReplica(1, EngineState::kAsleep);
  executors_[0]->FinishRecovery(absl::OkStatus());
  sleep.join();
  EXPECT_EQ(set_->Stats().replicas[0].state, EngineState::kAsleep);
  EXPECT_EQ(set_->state(), EngineState::kAsleep);
}

TEST_P(ReplicaRetryTest, NobodyIsTriedAgainOnceAllHaveFailed) {
  Start(2, nullptr, {.first_pause = absl::Milliseconds(1)});
  for (const auto& executor : executors_) {
    executor->Lose(kLoss);
    Await([&] { return executor->recoveries().size() == 1; });
  }
  for (const auto& executor : executors_) executor->FinishRecovery(kLoss);
  Await([&] { return set_->state() == EngineState::kFailed; });
  EXPECT_FALSE(set_->Submit(MakeTicket("1", 5, 10).request).ok());
}

}  // namespace
}  // namespace somnus
