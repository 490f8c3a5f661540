#include "coordinator/engine/prefill_speed.h"

#include <gtest/gtest.h>

namespace somnus {
namespace {

constexpr MonotonicTime kNow = absl::Hours(1);

TEST(PrefillSpeedTest, NobodyCanTellBeforeTheSecondStepOfAClass) {
  PrefillSpeed speed(512);
  EXPECT_FALSE(speed.TimeFor(100, kNow).has_value());
  speed.Observe(100, absl::Seconds(10), kNow);  // captures graphs
  EXPECT_FALSE(speed.TimeFor(100, kNow).has_value());
  speed.Observe(100, absl::Seconds(1), kNow);
  EXPECT_EQ(speed.TimeFor(100, kNow), absl::Seconds(1));
  EXPECT_EQ(speed.TimeFor(120, kNow), absl::Seconds(1.2));
}

TEST(PrefillSpeedTest, ABacklogIsComputedInWholeSteps) {
  PrefillSpeed speed(512);
  for (int i = 0; i < 2; ++i) speed.Observe(512, absl::Seconds(2), kNow);
  EXPECT_EQ(speed.TimeFor(5120, kNow), absl::Seconds(20));
}

// A larger step is at least as quick by the token; a smaller step says nothing of a larger step.
TEST(PrefillSpeedTest, AnEstimateIsALowerBound) {
  PrefillSpeed speed(512);
  for (int i = 0; i < 2; ++i) speed.Observe(256, absl::Seconds(1), kNow);
  EXPECT_EQ(speed.TimeFor(64, kNow), absl::Seconds(0.25));
  EXPECT_FALSE(speed.TimeFor(512, kNow).has_value());
  EXPECT_FALSE(speed.TimeFor(100000, kNow).has_value());
}

TEST(PrefillSpeedTest, ALateReplyAndTheQuickOneAfterItMakeUpForEachOther) {
  PrefillSpeed speed(512);
  for (int i = 0; i < 50; ++i) speed.Observe(512, absl::Seconds(1), kNow);
  speed.Observe(512, absl::Seconds(1.9), kNow);
  speed.Observe(512, absl::Seconds(0.1), kNow);
  const std::optional<absl::Duration> time = speed.TimeFor(512, kNow);
  ASSERT_TRUE(time.has_value());
  EXPECT_NEAR(absl::ToDoubleSeconds(*time), 1, 0.03);
}

TEST(PrefillSpeedTest, ItFollowsAChange) {
  PrefillSpeed speed(512);
  for (int i = 0; i < 50; ++i) speed.Observe(512, absl::Seconds(1), kNow);
  for (int i = 0; i < 50; ++i) speed.Observe(512, absl::Seconds(4), kNow);
  EXPECT_NEAR(absl::ToDoubleSeconds(*speed.TimeFor(512, kNow)), 4, 0.1);
}

TEST(PrefillSpeedTest, WhatIsOldIsForgotten) {
  PrefillSpeed speed(512);
  for (int i = 0; i < 2; ++i) speed.Observe(512, absl::Seconds(9), kNow);
  const MonotonicTime later = kNow + PrefillSpeed::kLife + absl::Seconds(1);
  EXPECT_TRUE(speed.TimeFor(512, kNow + PrefillSpeed::kLife).has_value());
  EXPECT_FALSE(speed.TimeFor(512, later).has_value());
  for (int i = 0; i < 2; ++i) speed.Observe(512, absl::Seconds(1), later);
  EXPECT_EQ(speed.TimeFor(512, later), absl::Seconds(1));
}

}  // namespace
}  // namespace somnus
