#include "worker/mask_inbox.h"

#include <gtest/gtest.h>

#include <thread>

namespace somnus {
namespace {

v1::StepMasks MasksOf(int64_t step_id, std::initializer_list<int32_t> slots, bool has_more = false) {
  v1::StepMasks masks;
  masks.set_step_id(step_id);
  masks.set_has_more(has_more);
  for (const int32_t slot : slots) masks.add_masks()->set_slot(slot);
  return masks;
}

TEST(MaskInbox, MasksWaitForTheirStep) {
  MaskInbox inbox;
  inbox.BeginEpoch(1);
  ASSERT_TRUE(inbox.Put(1, MasksOf(7, {0})).ok());
  ASSERT_TRUE(inbox.Put(1, MasksOf(9, {2})).ok());
  EXPECT_EQ(inbox.AwaitMasks(1, 7)->masks(0).slot(), 0);
  EXPECT_EQ(inbox.AwaitMasks(1, 9)->masks(0).slot(), 2);
}

TEST(MaskInbox, AStepWaitsForItsMasks) {
  MaskInbox inbox;
  inbox.BeginEpoch(1);
  absl::StatusOr<v1::StepMasks> masks;
  std::thread runner([&] { masks = inbox.AwaitMasks(1, 4); });
  ASSERT_TRUE(inbox.Put(1, MasksOf(3, {8})).ok());  // of a step that has failed
  ASSERT_TRUE(inbox.Put(1, MasksOf(4, {1, 2}, /*has_more=*/true)).ok());
  ASSERT_TRUE(inbox.Put(1, MasksOf(4, {3})).ok());
  runner.join();
  ASSERT_TRUE(masks.ok());
  ASSERT_EQ(masks->masks_size(), 3);
  EXPECT_EQ(masks->masks(2).slot(), 3);
}

TEST(MaskInbox, TheEndOfAnEpochEndsTheWait) {
  MaskInbox inbox;
  inbox.BeginEpoch(2);
  absl::StatusOr<v1::StepMasks> masks;
  std::thread runner([&] { masks = inbox.AwaitMasks(2, 4); });
  inbox.EndUpTo(1, "an older epoch");
  inbox.EndUpTo(2, "rank 1 was killed");
  runner.join();
  EXPECT_EQ(masks.status(), absl::AbortedError("rank 1 was killed"));
  EXPECT_TRUE(absl::IsFailedPrecondition(inbox.Put(2, MasksOf(4, {0}))));
}

TEST(MaskInbox, ANewEpochBeginsEmpty) {
  MaskInbox inbox;
  inbox.BeginEpoch(1);
  ASSERT_TRUE(inbox.Put(1, MasksOf(4, {0})).ok());
  inbox.EndUpTo(1 << 30, "the worker leaves");
  inbox.BeginEpoch(2);
  EXPECT_EQ(inbox.AwaitMasks(1, 4).status(), absl::AbortedError("epoch 2 has begun"));
  ASSERT_TRUE(inbox.Put(2, MasksOf(4, {5})).ok());
  EXPECT_EQ(inbox.AwaitMasks(2, 4)->masks(0).slot(), 5);
}

TEST(MaskInbox, IsBounded) {
  MaskInbox inbox;
  inbox.BeginEpoch(1);
  for (size_t i = 1; i <= MaskInbox::kMostSteps; ++i)
    ASSERT_TRUE(inbox.Put(1, MasksOf(static_cast<int64_t>(i), {})).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(inbox.Put(1, MasksOf(100, {}))));
}

}  // namespace
}  // namespace somnus
