// Adapters (LoRA) of an engine with replicas: every replica holds the same adapters, of the same files.

#include <gtest/gtest.h>

#include "tests/replicas/replica_set_fixture.h"

namespace somnus {
namespace {

class ReplicaAdaptersTest : public ReplicaSetTest {
 protected:
  static HeldAdapter Adapter(int32_t slot, const std::string& name) {
    return {.slot = slot, .id = static_cast<uint64_t>(slot), .name = name, .path = "/" + name};
  }
  std::string LastCall(size_t replica) const { return executors_[replica]->lifecycle_calls().back(); }
};

TEST_P(ReplicaAdaptersTest, FilesThatDifferAmongReplicasAreAnError) {
  Start();
  ASSERT_TRUE(set_->SetAdapters({Adapter(1, "poet")}).ok());
  executors_[1]->ChangeAdapterFiles("/lawyer");
  HeldAdapter poet = Adapter(1, "poet");
  poet.must_be_held = true;
  const absl::Status differ = set_->SetAdapters({poet, Adapter(2, "lawyer")}).status();
  EXPECT_TRUE(absl::IsDataLoss(differ)) << differ;
  for (const size_t replica : {0, 1}) EXPECT_EQ(LastCall(replica), "adapters 1=poet");
}

TEST_P(ReplicaAdaptersTest, AReplicaThatHasFailedGetsTheAdaptersWithItsNextWorkers) {
  Start();
  executors_[1]->SetRecovery(Recovery::kFails);
  executors_[1]->Lose(kLoss);
  AwaitReplica(1, EngineState::kFailed);
  const absl::StatusOr<TransitionReport> set = set_->SetAdapters({Adapter(1, "poet")});
  ASSERT_TRUE(set.ok()) << set.status();
  EXPECT_EQ(LastCall(0), "adapters 1=poet");
  executors_[1]->SetRecovery(Recovery::kSucceeds);
  ASSERT_EQ(set_->Revive(/*asleep=*/false), absl::OkStatus());
  const std::vector<HeldAdapter> held = executors_[1]->recovered().adapters;
  ASSERT_EQ(held.size(), 1u);
  EXPECT_EQ(held[0].fingerprint, "/poet 0");
}

INSTANTIATE_TEST_SUITE_P(Scheduling, ReplicaAdaptersTest, ::testing::Bool());

}  // namespace
}  // namespace somnus
