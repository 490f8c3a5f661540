// Replicas are restarted one by one under load, and nothing is lost.

#include <atomic>
#include <thread>

#include "tests/replicas/replica_set_fixture.h"

namespace somnus {
namespace {

using ReplicaRollTest = ReplicaSetTest;
INSTANTIATE_TEST_SUITE_P(Overlap, ReplicaRollTest, ::testing::Bool());

TEST_P(ReplicaRollTest, NothingIsLostUnderLoad) {
  Start(3);
  for (const auto& executor : executors_) executor->SetRecovery(Recovery::kSucceeds);
  std::atomic<bool> over{false};
  std::vector<Ticket> tickets;
  std::thread clients([&] {
    for (int i = 0; !over || i < 30; ++i) {
      tickets.push_back(Submit(std::to_string(i), 5 + i % 9, 60, 50 * (i % 10) + 1));
      if (i >= 8) tickets[i - 8].sink->Wait();
    }
  });
  for (int i = 0; i < 5; ++i) {
    const absl::Status status = set_->Roll(absl::ZeroDuration());
    EXPECT_TRUE(status.ok()) << status;
  }
  over = true;
  clients.join();
  ExpectExact(tickets);
  for (const auto& executor : executors_)
    EXPECT_EQ(executor->recoveries(), std::vector<std::string>(5, "restart"));
  const EngineStats stats = set_->Stats();
  EXPECT_EQ(stats.num_recoveries, 0);
  EXPECT_EQ(stats.group_epoch, 6);
  EXPECT_EQ(stats.generation_tokens, static_cast<int64_t>(tickets.size()) * 60);
  EXPECT_EQ(set_->state(), EngineState::kAwake);
}

// A replica gets no request while restarted, and the engine serves.
TEST_P(ReplicaRollTest, TheOthersServeMeanwhile) {
  Start();  // restarts wait
  std::thread roll([&] { EXPECT_TRUE(set_->Roll(absl::Minutes(1)).ok()); });
  for (size_t i = 0; i < 2; ++i) {
    AwaitReplica(i, EngineState::kRecovering);
    EXPECT_EQ(set_->state(), EngineState::kAwake);
    EXPECT_TRUE(set_->Health().ok());
    const int64_t before = set_->Stats().replicas[i].num_requests;
    for (int k = 0; k < 4; ++k) ExpectExact({Submit(std::to_string(k), 5, 10)});
    EXPECT_EQ(set_->Stats().replicas[i].num_requests, before);
    executors_[i]->FinishRecovery(absl::OkStatus());
  }
  roll.join();
}

// Open requests finish at their replica when there is time.
TEST_P(ReplicaRollTest, WithinTheGraceRequestsStay) {
  Start();
  for (const auto& executor : executors_) executor->SetRecovery(Recovery::kSucceeds);
  const std::vector<Ticket> tickets = SubmitMany(6, 150);
  ASSERT_TRUE(set_->Roll(absl::Minutes(5)).ok());
  ExpectExact(tickets);
  EXPECT_EQ(set_->Stats().num_moved, 0);
}

TEST_P(ReplicaRollTest, AReplicaThatDoesNotComeBackEndsTheRoll) {
  Start(3);
  executors_[0]->SetRecovery(Recovery::kSucceeds);
  executors_[1]->SetRecovery(Recovery::kFails);
  const absl::Status status = set_->Roll(absl::ZeroDuration());
  EXPECT_EQ(status, absl::UnavailableError("replica 1: the new workers did not come"));
  EXPECT_TRUE(executors_[2]->recoveries().empty()) << "it is left alone";
  EXPECT_EQ(set_->Stats().replicas[1].state, EngineState::kFailed);
  EXPECT_EQ(set_->state(), EngineState::kAwake);
  ExpectExact(SubmitMany(6));
}

TEST_P(ReplicaRollTest, AReplicaThatHasFailedComesFirst) {
  Start();
  executors_[1]->SetRecovery(Recovery::kFails);
  executors_[1]->Lose(kLoss);
  AwaitReplica(1, EngineState::kFailed);
  EXPECT_EQ(set_->Roll(absl::ZeroDuration()),
            absl::UnavailableError("replica 1: the new workers did not come"));
  EXPECT_TRUE(executors_[0]->recoveries().empty()) << "nobody else would serve meanwhile";
  for (const auto& executor : executors_) executor->SetRecovery(Recovery::kSucceeds);
  const absl::Status status = set_->Roll(absl::ZeroDuration());
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(executors_[0]->recoveries(), (std::vector<std::string>{"restart"}));
  EXPECT_EQ(executors_[1]->recoveries(), (std::vector<std::string>{"awake", "restart", "restart"}));
  EXPECT_EQ(set_->Stats().replicas[1].error, "");
  ExpectExact(SubmitMany(6));
}

TEST_P(ReplicaRollTest, ASleepingEngineIsNotRolled) {
  Start();
  ASSERT_TRUE(set_->Sleep({.level = 1}).ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(set_->Roll(absl::ZeroDuration())));
}

TEST_P(ReplicaRollTest, OneReplicaCannotBeRolled) {
  FakeExecutor executor(SmallWorker(options_));
  EngineLoop engine(options_, &executor, nullptr);
  EXPECT_TRUE(absl::IsFailedPrecondition(engine.Roll(absl::ZeroDuration())));
}

TEST_P(ReplicaRollTest, DrainingEndsARoll) {
  Start();
  for (const auto& executor : executors_) executor->Hold(true);
  const Ticket one = Submit("1", 5, 60), two = Submit("2", 5, 60, 500);
  Await([&] { return set_->Stats().replicas[0].num_requests == 1; });
  std::thread roll([&] { EXPECT_TRUE(absl::IsFailedPrecondition(set_->Roll(absl::InfiniteDuration()))); });
  std::thread drain([&] { set_->DrainAndStop(absl::Minutes(1)); });
  Await([&] { return set_->state() == EngineState::kDraining; });
  roll.join();
  for (const auto& executor : executors_) executor->Hold(false);
  drain.join();
  ExpectExact({one, two});
}

}  // namespace
}  // namespace somnus
