#include "coordinator/engine/step_deadline.h"

#include <gtest/gtest.h>

namespace somnus {
namespace {

constexpr absl::Duration kStepTimeout = absl::Minutes(5);

StepDeadline Started(absl::Duration hang_timeout = absl::Seconds(4)) {
  StepDeadline deadline(hang_timeout, kStepTimeout);
  deadline.Observe(1, absl::Seconds(30));  // the first step, which is no measure
  return deadline;
}

TEST(StepDeadlineTest, WhatIsNotKnownHasTheStepTimeout) {
  StepDeadline deadline(absl::Seconds(4), kStepTimeout);
  EXPECT_EQ(deadline.Timeout(8), kStepTimeout);
  deadline.Observe(8, absl::Seconds(1));  // may have captured graphs
  EXPECT_EQ(deadline.Timeout(8), kStepTimeout);
  deadline.Observe(8, absl::Seconds(1));
  EXPECT_EQ(deadline.Timeout(8), absl::Seconds(20));
  EXPECT_EQ(deadline.Timeout(16), kStepTimeout) << "another size class";
  EXPECT_EQ(deadline.Timeout(7), kStepTimeout);
  EXPECT_EQ(deadline.Timeout(15), absl::Seconds(20)) << "the same one";
}

TEST(StepDeadlineTest, AFastStepHasTheFloor) {
  StepDeadline deadline = Started();
  deadline.Observe(8, absl::Milliseconds(5));
  EXPECT_EQ(deadline.Timeout(8), absl::Seconds(4));
  StepDeadline lowest = Started(absl::Seconds(1));
  lowest.Observe(8, absl::ZeroDuration());
  EXPECT_EQ(lowest.Timeout(8), StepDeadline::kLowestFloor);
}

TEST(StepDeadlineTest, TheStepTimeoutIsTheMost) {
  StepDeadline deadline = Started();
  deadline.Observe(512, absl::Minutes(1));
  EXPECT_EQ(deadline.Timeout(512), kStepTimeout);
  StepDeadline short_timeout(absl::Seconds(4), absl::Milliseconds(50));
  short_timeout.Observe(8, absl::Milliseconds(5));
  short_timeout.Observe(8, absl::Milliseconds(5));
  EXPECT_EQ(short_timeout.Timeout(8), absl::Milliseconds(50)) << "below the floor, as was asked for";
}

TEST(StepDeadlineTest, TheSlowestOfTheLastStepsCounts) {
  StepDeadline deadline = Started();
  deadline.Observe(8, absl::Seconds(2));
  for (int i = 0; i < StepDeadline::kWindow; ++i) deadline.Observe(8, absl::Milliseconds(500));
  EXPECT_EQ(deadline.Timeout(8), absl::Seconds(40));
  for (int i = 0; i < StepDeadline::kWindow; ++i) deadline.Observe(8, absl::Milliseconds(500));
  EXPECT_EQ(deadline.Timeout(8), absl::Seconds(10)) << "the slow one is forgotten";
}

TEST(StepDeadlineTest, ANewEpochHasMoreTimeUntilAStepWasObserved) {
  StepDeadline deadline = Started();
  deadline.Observe(8, absl::Seconds(1));
  deadline.Restart();
  EXPECT_EQ(deadline.Timeout(8), absl::Seconds(80));
  EXPECT_EQ(deadline.Timeout(16), kStepTimeout) << "never observed";
  deadline.Observe(8, absl::Seconds(9));  // the first step is no measure
  EXPECT_EQ(deadline.Timeout(8), absl::Seconds(80));
  deadline.Restart();
  EXPECT_EQ(deadline.Timeout(8), absl::Seconds(80)) << "as often as it is lost";
  deadline.Observe(8, absl::Seconds(9));
  deadline.Observe(8, absl::Seconds(2));
  EXPECT_EQ(deadline.Timeout(8), absl::Seconds(40));
}

TEST(StepDeadlineTest, AnyNumberOfTokens) {
  StepDeadline deadline = Started();
  deadline.Observe(0, absl::Seconds(1));
  deadline.Observe(1 << 20, absl::Seconds(2));
  EXPECT_EQ(deadline.Timeout(0), absl::Seconds(20));
  EXPECT_EQ(deadline.Timeout(1 << 20), absl::Seconds(40));
  EXPECT_EQ(deadline.Timeout(2147483647), kStepTimeout);
}

}  // namespace
}  // namespace somnus
