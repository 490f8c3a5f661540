// The worker's self-check: when the check runs, and which results it gives.

#include <gtest/gtest.h>

#include "tests/worker/weights_test.h"

namespace somnus {
namespace {

class WorkerCheckTest : public WeightsTest {
 protected:
  absl::StatusOr<v1::SelfCheckResponse> Check(int64_t epoch = 1) {
    v1::SelfCheckRequest request;
    request.set_group_epoch(epoch);
    return worker_.SelfCheck(request);
  }
  uint64_t Fingerprint(int64_t version) {
    const absl::StatusOr<v1::SelfCheckResponse> response = Check();
    EXPECT_TRUE(response.ok()) << response.status();
    if (!response.ok()) return 0;
    EXPECT_EQ(response->weights_version(), version);
    return response->fingerprint();
  }
};

TEST_F(WorkerCheckTest, NamesTheVersionAndFindsDamage) {
  MakeAwake();
  const uint64_t first = Fingerprint(1);
  for (const int level : {1, 2}) {
    ASSERT_EQ(Transit(level), absl::OkStatus());
    ASSERT_EQ(Transit(0), absl::OkStatus());
    EXPECT_EQ(Fingerprint(1), first);
  }
  control_.weights[5] ^= 1;
  EXPECT_NE(Fingerprint(1), first);
  ASSERT_TRUE(Reload("other", 4).ok());
  EXPECT_EQ(Fingerprint(4), first);
}

TEST_F(WorkerCheckTest, RunsWhereAStepCould) {
  MakeAwake();
  ExpectRefused(Check(/*epoch=*/2).status(), "epoch 2");
  ASSERT_EQ(worker_.Prepare(PrepareOf(TransitionOf(1), 1)), absl::OkStatus());
  ExpectRefused(Check().status(), "SelfCheck: a transition is prepared");
  ASSERT_TRUE(worker_.Commit(CommitOf(1)).ok());
  ExpectRefused(Check().status(), "SelfCheck");
  last_transition_ = 1;
  ASSERT_EQ(Transit(0), absl::OkStatus());
  ASSERT_EQ(Begin("a"), absl::OkStatus());
  ExpectRefused(Check().status(), "SelfCheck: the weights are stale");
}

TEST_F(WorkerCheckTest, WhatFailsIsACollective) {
  MakeAwake();
  control_.execute_error = absl::InternalError("the device has failed");
  EXPECT_EQ(Check().status(), control_.execute_error);
  EXPECT_EQ(worker_.GetStatus().state(), "failed");
  control_.execute_error = absl::OkStatus();
  EXPECT_FALSE(Check().ok());
  ASSERT_TRUE(BeginEpoch(worker_, 2).ok());
  ASSERT_EQ(worker_.JoinGroup(JoinRequest(0, 1, "", 2)), absl::OkStatus());
  EXPECT_TRUE(Check(/*epoch=*/2).ok());
}

}  // namespace
}  // namespace somnus
