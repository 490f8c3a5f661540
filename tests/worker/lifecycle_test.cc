// A worker's states, and which failures end with an epoch.

#include "worker/lifecycle.h"

#include <gtest/gtest.h>

namespace somnus {
namespace {

TEST(Lifecycle, AFailureOfAnEpochEndsWithIt) {
  Lifecycle lifecycle;
  lifecycle.BeginEpoch(1);
  lifecycle.Set(WorkerState::kAsleep, 2);
  EXPECT_TRUE(lifecycle.Fail(1, absl::InternalError("first")));
  EXPECT_FALSE(lifecycle.Fail(1, absl::InternalError("second")));
  EXPECT_EQ(lifecycle.state(), WorkerState::kFailed);
  EXPECT_EQ(lifecycle.sleep_level(), 0);
  EXPECT_EQ(lifecycle.Require({WorkerState::kAsleep}, "WakeUp"), absl::InternalError("first"));
  lifecycle.BeginEpoch(2);
  EXPECT_EQ(lifecycle.state(), WorkerState::kAsleep);
  EXPECT_EQ(lifecycle.sleep_level(), 2);
  EXPECT_TRUE(lifecycle.Require({WorkerState::kAsleep}, "WakeUp").ok());
}

TEST(Lifecycle, AFailureThatComesAfterItsEpochIsIgnored) {
  Lifecycle lifecycle;
  lifecycle.BeginEpoch(2);
  lifecycle.Set(WorkerState::kAwake);
  EXPECT_FALSE(lifecycle.Fail(1, absl::InternalError("late")));
  EXPECT_EQ(lifecycle.state(), WorkerState::kAwake);
}

TEST(Lifecycle, AFailureForGoodStays) {
  Lifecycle lifecycle;
  lifecycle.BeginEpoch(1);
  EXPECT_TRUE(lifecycle.Fail(1, absl::InternalError("a step")));
  EXPECT_FALSE(lifecycle.FailForGood(absl::InternalError("could not be undone")));
  lifecycle.BeginEpoch(2);
  EXPECT_EQ(lifecycle.state(), WorkerState::kFailed);
  EXPECT_EQ(lifecycle.Require({WorkerState::kAwake}, "Sleep"), absl::InternalError("a step"));
}

TEST(Lifecycle, RequireNamesCallAndState) {
  Lifecycle lifecycle;
  EXPECT_EQ(lifecycle.Require({WorkerState::kAwake}, "Sleep"),
            absl::FailedPreconditionError("Sleep: the worker is created"));
}

}  // namespace
}  // namespace somnus
