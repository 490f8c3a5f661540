// Changes of the weights over several replicas.

#include <algorithm>
#include <thread>

#include "coordinator/engine/caller.h"
#include "tests/replicas/replica_set_fixture.h"

namespace somnus {
namespace {

using Calls = std::vector<std::string>;

class ReplicaWeightsTest : public ReplicaSetTest {
 protected:
  ReplicaWeightsTest() { options_.weights.path = "old"; }
  EngineState StateOf(size_t replica) { return set_->Stats().replicas[replica].state; }
  std::string LastCall(size_t replica) { return executors_[replica]->lifecycle_calls().back(); }
};

INSTANTIATE_TEST_SUITE_P(Scheduling, ReplicaWeightsTest, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "async" : "sync"; });

TEST_P(ReplicaWeightsTest, AllReplicasGetTheSameVersion) {
  Start(3);
  ExpectExact(SubmitMany(6));
  EXPECT_EQ(set_->ReloadWeights({.path = "new"})->version, 2);
  for (const auto& executor : executors_) EXPECT_EQ(executor->lifecycle_calls(), Calls{"reload new as 2"});
  EXPECT_EQ(set_->state(), EngineState::kAwake);
  EXPECT_EQ(set_->Stats().weights_version, 2);
  EXPECT_EQ(set_->Stats().weights_source, "new");
  const std::vector<Ticket> tickets = SubmitMany(6);
  ExpectExact(tickets);
  for (const Ticket& ticket : tickets)
    EXPECT_EQ(ticket.sink->weights_versions(), std::set<int64_t>{2}) << ticket.request.id;
}

TEST_P(ReplicaWeightsTest, WhatTheFirstReplicaRefusesIsNotTriedOnTheOthers) {
  Start(2);
  executors_[0]->SetNextWeightsOutcome({.status = absl::InvalidArgumentError("no file"), .untouched = true});
  EXPECT_EQ(set_->ReloadWeights({}).status(), absl::InvalidArgumentError("replica 0: no file"));
  EXPECT_TRUE(executors_[1]->lifecycle_calls().empty());
  EXPECT_EQ(set_->Stats().weights_version, 1);
  ExpectExact(SubmitMany(4));
}

TEST_P(ReplicaWeightsTest, AReplicaThatDoesNotFollowServesNothing) {
  Start(2);
  executors_[1]->SetNextWeightsOutcome({.status = absl::InvalidArgumentError("no file"), .untouched = true});
  const absl::Status status = set_->ReloadWeights({}).status();
  EXPECT_TRUE(absl::IsInternal(status)) << status;
  EXPECT_EQ(status.message(), "replica 1: no file");
  EXPECT_EQ(StateOf(0), EngineState::kAwake);
  EXPECT_EQ(StateOf(1), EngineState::kAsleep) << "its weights are the old ones";
  const std::vector<Ticket> tickets = SubmitMany(4);
  ExpectExact(tickets);
  for (const Ticket& ticket : tickets) EXPECT_EQ(ticket.sink->weights_versions(), std::set<int64_t>{2});
  EXPECT_EQ(set_->ReloadWeights({})->version, 3);
  EXPECT_EQ(StateOf(1), EngineState::kAwake);
}

TEST_P(ReplicaWeightsTest, AChangeThatNobodyWantsAnyMoreChangesNoReplica) {
  Start(2);
  {
    const CallerScope gone({.name = "client", .has_left = [] { return true; }});
    EXPECT_TRUE(absl::IsCancelled(set_->BeginWeightUpdate({}).status()));
    EXPECT_TRUE(absl::IsCancelled(set_->ReloadWeights({}).status()));
  }
  for (const auto& executor : executors_) EXPECT_EQ(executor->lifecycle_calls(), Calls());
  EXPECT_EQ(set_->state(), EngineState::kAwake);
  ExpectExact(SubmitMany(4));
}

TEST_P(ReplicaWeightsTest, ReplicasThatReadOtherFilesDoNotServeTogether) {
  Start(2);
  executors_[1]->SetNextWeightsOutcome({.fingerprint = "beef"});
  EXPECT_FALSE(set_->ReloadWeights({}).ok());
  EXPECT_EQ(StateOf(0), EngineState::kAwake);
  EXPECT_EQ(StateOf(1), EngineState::kAsleep);
}

TEST_P(ReplicaWeightsTest, RequestsThatNoReplicaCanServeEndAfterTheTimeout) {
  options_.stale_weights_timeout = absl::Milliseconds(1);
  Start(2);
  executors_[1]->SetNextWeightsOutcome({.status = absl::InternalError("a short file")});
  EXPECT_FALSE(set_->ReloadWeights({}).ok());
  ExpectExact(SubmitMany(4));
  executors_[0]->SetNextWeightsOutcome({.status = absl::InternalError("a short file")});
  EXPECT_FALSE(set_->ReloadWeights({}).ok());
  // A request that comes earlier ends in the queue.
  Await([&] {
    Ticket ticket = MakeTicket("a", 5, 5);
    const absl::Status status = set_->Submit(ticket.request);
    if (status.ok()) {
      EXPECT_TRUE(ticket.sink->Wait());
    }
    EXPECT_EQ(status.ok() ? ticket.sink->error() : status, absl::UnavailableError(kStaleForTooLong));
    return !status.ok();
  });
  ASSERT_TRUE(set_->ReloadWeights({}).ok());
  ExpectExact(SubmitMany(4));
}

TEST_P(ReplicaWeightsTest, AnUpdateReachesAllReplicas) {
  Start(2);
  {
    auto update = set_->BeginWeightUpdate({});
    ASSERT_TRUE(update.ok()) << update.status();
    v1::WeightChunk chunk;
    chunk.set_name("a");
    ASSERT_TRUE((*update)->Send(chunk).ok());
    EXPECT_EQ((*update)->Finish()->version, 2);
  }
  for (const auto& executor : executors_)
    EXPECT_EQ(executor->lifecycle_calls(), (Calls{"begin update", "chunk a", "finish update as 2"}));
  ExpectExact(SubmitMany(4));
  EXPECT_TRUE(absl::IsFailedPrecondition(set_->Roll(absl::ZeroDuration()))) << "new workers have no update";
  { auto update = set_->BeginWeightUpdate({}); }
  EXPECT_EQ(set_->state(), EngineState::kAsleep);
  EXPECT_EQ(set_->Stats().weights_version, 0);
  ASSERT_TRUE(set_->ReloadWeights({}).ok()) << "the lock is free again";
  ExpectExact(SubmitMany(4));
}

TEST_P(ReplicaWeightsTest, AnUpdateThatALaterReplicaRefusesHasChangedTheEarlierOnes) {
  Start(2);
  const WeightsOutcome refused = {.status = absl::FailedPreconditionError("no"), .untouched = true};
  executors_[0]->SetNextWeightsOutcome(refused);
  EXPECT_EQ(set_->BeginWeightUpdate({}).status(), absl::FailedPreconditionError("replica 0: no"));
  ExpectExact(SubmitMany(4));
  executors_[1]->SetNextWeightsOutcome(refused);
  EXPECT_EQ(set_->BeginWeightUpdate({}).status(), absl::InternalError("replica 1: no"));
  EXPECT_EQ(StateOf(0), EngineState::kAsleep) << "its weights are stale";
  EXPECT_EQ(StateOf(1), EngineState::kAwake);
  ExpectExact(SubmitMany(4));
  ASSERT_TRUE(set_->ReloadWeights({}).ok());
  EXPECT_EQ(StateOf(0), EngineState::kAwake);
}

TEST_P(ReplicaWeightsTest, AWakeUpEndsThePauseOfAReplicaThatLacksItsWeights) {
  Start(2);
  executors_[1]->SetNextWeightsOutcome({.status = absl::FailedPreconditionError("no"), .untouched = true});
  EXPECT_FALSE(set_->BeginWeightUpdate({}).ok());
  ASSERT_EQ(StateOf(0), EngineState::kAsleep) << "its weights are stale";
  ASSERT_TRUE(set_->Pause({}).ok());
  ASSERT_TRUE(set_->Sleep({.level = 1, .tags = {"kv_cache"}}).ok());
  ASSERT_TRUE(set_->WakeUp({"kv_cache"}).ok());
  EXPECT_EQ(StateOf(1), EngineState::kAwake);
  ASSERT_TRUE(set_->ReloadWeights({}).ok());
  EXPECT_EQ(StateOf(0), EngineState::kAwake);
}

// A self-check that finds damage puts one replica's weights to sleep, and another replica's weights stay.
TEST_P(ReplicaWeightsTest, AChangeThatOneReplicaWouldRefuseChangesNoReplica) {
  options_.wake_self_check = true;
  Start(2);
  ASSERT_TRUE(set_->Sleep({.level = 1}).ok());
  ASSERT_TRUE(set_->WakeUp({"weights"}).ok());
  executors_[1]->SetChecked({.fingerprint = 2, .machines = "cpu", .bitwise = true});
  ASSERT_TRUE(absl::IsDataLoss(set_->WakeUp({}).status()));
  const Calls before = executors_[0]->lifecycle_calls();
  const absl::Status refused = absl::FailedPreconditionError(absl::StrCat("replica 1: ", kWeightsSleep));
  EXPECT_EQ(set_->ReloadWeights({}).status(), refused);
  EXPECT_EQ(set_->BeginWeightUpdate({}).status(), refused);
  EXPECT_EQ(executors_[0]->lifecycle_calls(), before);
  executors_[1]->SetChecked({.fingerprint = 1, .machines = "cpu", .bitwise = true});
  ASSERT_TRUE(set_->WakeUp({}).ok()) << "level 2 reads the checkpoint";
  ASSERT_TRUE(set_->ReloadWeights({}).ok());
  ExpectExact(SubmitMany(4));
}

TEST_P(ReplicaWeightsTest, ADirectUpdateHasPortsOfAllReplicas) {
  Start(2);
  auto update = set_->BeginWeightUpdate({.port_token = "secret"});
  ASSERT_TRUE(update.ok()) << update.status();
  const std::vector<v1::UpdatePort> ports = (*update)->ports();
  ASSERT_EQ(ports.size(), 2u);
  for (int replica = 0; replica < 2; ++replica) {
    EXPECT_EQ(ports[replica].address(), "port for secret");
    EXPECT_EQ(ports[replica].replica(), replica);
  }
  EXPECT_TRUE((*update)->Finish(ReceivedWeights{.num_tensors = 3}).ok());
  for (const auto& executor : executors_)
    EXPECT_EQ(executor->lifecycle_calls(), (Calls{"begin update", "finish update of 3 as 2"}));
}

// A change waits for a replica that recovers, and need not fail with the replica.
TEST_P(ReplicaWeightsTest, AReplicaWhoseRecoveryFailsMeanwhileDoesNotEndTheChange) {
  Start(2);
  executors_[0]->Lose(kLoss);
  AwaitReplica(0, EngineState::kRecovering);
  std::thread reload([&] { EXPECT_EQ(set_->ReloadWeights({.path = "new"})->version, 2); });
  Await([&] { return executors_[1]->lifecycle_calls() == Calls{"reload new as 2"}; });
  executors_[0]->FinishRecovery(kLoss);
  reload.join();
  EXPECT_EQ(StateOf(0), EngineState::kFailed);
  EXPECT_EQ(set_->Stats().weights_version, 2);
  ExpectExact(SubmitMany(4));
}

TEST_P(ReplicaWeightsTest, AReplicaWhoseRecoveryFailsMeanwhileDoesNotEndAnUpdate) {
  Start(2);
  executors_[0]->Lose(kLoss);
  AwaitReplica(0, EngineState::kRecovering);
  std::thread update([&] {
    auto update = set_->BeginWeightUpdate({});
    ASSERT_TRUE(update.ok()) << update.status();
    EXPECT_EQ((*update)->Finish()->version, 2);
  });
  Await([&] { return executors_[1]->lifecycle_calls() == Calls{"begin update"}; });
  executors_[0]->FinishRecovery(kLoss);
  update.join();
  EXPECT_EQ(StateOf(0), EngineState::kFailed);
  EXPECT_EQ(LastCall(1), "finish update as 2");
  ExpectExact(SubmitMany(4));
}

TEST_P(ReplicaWeightsTest, AReplicaThatIsTriedAgainGetsTheWeightsOfTheOthers) {
  Start(2, nullptr, {.first_pause = absl::Milliseconds(1)});
  executors_[0]->SetRecovery(Recovery::kFails);
  executors_[0]->Lose(kLoss);
  AwaitReplica(0, EngineState::kFailed);
  ASSERT_TRUE(set_->ReloadWeights({.path = "new"}).ok());
  executors_[0]->SetRecovery(Recovery::kSucceeds);
  AwaitReplica(0, EngineState::kAwake);
  EXPECT_EQ(executors_[0]->recovered().weights.path, "new");
  EXPECT_EQ(executors_[0]->recovered().weights.version, 2);
}

}  // namespace
}  // namespace somnus
