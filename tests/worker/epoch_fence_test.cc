// Which epochs' requests a worker serves.

#include "worker/epoch_fence.h"

#include <gtest/gtest.h>

namespace somnus {
namespace {

TEST(EpochFence, AnEpochThatIsNotCompleteAdmitsNothing) {
  EpochFence fence;
  ASSERT_TRUE(fence.Begin(1).ok());
  fence.Complete(1);
  ASSERT_TRUE(fence.Begin(2).ok());
  EXPECT_TRUE(fence.pending(2));
  EXPECT_TRUE(absl::IsFailedPrecondition(fence.Check(1)));
  EXPECT_TRUE(absl::IsFailedPrecondition(fence.Check(2)));
  fence.Complete(1);  // of the older fence, too late
  EXPECT_TRUE(fence.pending(2));
  fence.Complete(2);
  EXPECT_FALSE(fence.pending(2));
  EXPECT_TRUE(fence.Check(2).ok());
}

TEST(EpochFence, AnEpochCanBeginAgainUntilItWasUsed) {
  EpochFence fence;
  ASSERT_TRUE(fence.Begin(4).ok());
  EXPECT_TRUE(fence.Begin(4).ok());
  fence.Complete(4);
  EXPECT_TRUE(fence.Begin(4).ok());
  EXPECT_FALSE(fence.pending(4)) << "what ended has ended";
  EXPECT_TRUE(fence.Check(4).ok());
  EXPECT_TRUE(fence.Begin(4).ok()) << "a check alone is no use";
  EXPECT_TRUE(fence.Admit(4).ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(fence.Begin(4)));
  EXPECT_TRUE(absl::IsFailedPrecondition(fence.Begin(3)));
  EXPECT_TRUE(absl::IsInvalidArgument(fence.Begin(0)));
  EXPECT_EQ(fence.epoch(), 4);
  EXPECT_TRUE(fence.Begin(9).ok());
}

TEST(EpochFence, OnlyAShutdownOfAnOlderEpochIsRefused) {
  EpochFence fence;
  ASSERT_TRUE(fence.Begin(5).ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(fence.CheckShutdown(0)));
  EXPECT_TRUE(absl::IsFailedPrecondition(fence.CheckShutdown(4)));
  EXPECT_TRUE(fence.CheckShutdown(5).ok()) << "also while the epoch is not complete";
  EXPECT_TRUE(fence.CheckShutdown(6).ok());
}

}  // namespace
}  // namespace somnus
