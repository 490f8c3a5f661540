// Self-checks over all ranks of an epoch.

#include "tests/executor/group_epoch_fixture.h"

namespace somnus {
namespace {

class GroupCheckTest : public GroupEpochTest {
 protected:
  void Answer(int rank, int64_t version, uint64_t fingerprint,
              const absl::Status& status = absl::OkStatus()) {
    v1::SelfCheckResponse response;
    response.set_weights_version(version);
    response.set_fingerprint(fingerprint);
    workers_[rank]->SetCheck(response, status);
  }
};

TEST_F(GroupCheckTest, EveryRankComputesAndRank0Answers) {
  Connect(2);
  Answer(0, 3, 77);
  Answer(1, 3, 0);
  const absl::StatusOr<SelfCheckResult> result = epoch_->SelfCheck();
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->fingerprint, 77u);
  EXPECT_EQ(result->weights_version, 3);
  EXPECT_TRUE(result->bitwise);
  EXPECT_EQ(result->machines, "DEVICE_TYPE_CPU of host0; DEVICE_TYPE_CPU of host1; ");
  for (const auto& worker : workers_) EXPECT_EQ(worker->num_checks(), 1);
  EXPECT_TRUE(epoch_->Health().ok());
}

TEST_F(GroupCheckTest, GpusPromiseNothing) {
  Connect(1, absl::Milliseconds(50), v1::DEVICE_TYPE_CUDA);
  Answer(0, 1, 77);
  const absl::StatusOr<SelfCheckResult> result = epoch_->SelfCheck();
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_FALSE(result->bitwise);
}

// The other ranks wait for that rank in a collective, which only a new epoch ends.
TEST_F(GroupCheckTest, AnErrorOfOneRankIsALossOfTheGroup) {
  Connect(2);
  Answer(0, 1, 77);
  Answer(1, 1, 0, absl::InternalError("the device has failed"));
  EXPECT_EQ(epoch_->SelfCheck().status(), absl::InternalError("rank 1 (pid 71): the device has failed"));
  EXPECT_EQ(epoch_->Health(),
            absl::UnavailableError("the self-check has failed: rank 1 (pid 71): the device has failed"));
}

TEST_F(GroupCheckTest, RanksWithOtherWeightsAreNoGroup) {
  Connect(2);
  Answer(0, 2, 77);
  Answer(1, 1, 0);
  EXPECT_TRUE(absl::IsInternal(epoch_->SelfCheck().status()));
  EXPECT_FALSE(epoch_->Health().ok());
}

}  // namespace
}  // namespace somnus
