// How long blocks stay in the KV cache, by a clock of the test.

#include "coordinator/block_manager/block_residency.h"

#include <gtest/gtest.h>

#include <vector>

#include "coordinator/block_manager/block_manager.h"

namespace somnus {
namespace {

class BlockResidencyTest : public ::testing::Test {
 protected:
  BlockResidency Sampling(double rate) {
    return BlockResidency(rate, [this] { return now_; });
  }
  void Pass(int seconds) { now_ += absl::Seconds(seconds); }

  MonotonicTime now_ = absl::Hours(1);
};

TEST_F(BlockResidencyTest, AStayBeginsWithTheAllocationAndEndsWithTheEviction) {
  BlockResidency residency = Sampling(1);
  residency.NoteAllocated(3, /*was_cached=*/false);
  Pass(4);
  residency.NoteAccess(3);
  Pass(6);
  residency.NoteAccess(3);
  Pass(5);
  EXPECT_TRUE(residency.Take().empty()) << "the block is still cached";
  residency.NoteAllocated(3, /*was_cached=*/true);
  const std::vector<BlockStay> stays = residency.Take();
  ASSERT_EQ(stays.size(), 1u);
  EXPECT_EQ(stays[0].lifetime, absl::Seconds(15));
  EXPECT_EQ(stays[0].idle, absl::Seconds(5));
  EXPECT_EQ(stays[0].reuse_gaps, std::vector<absl::Duration>{absl::Seconds(6)});
  EXPECT_TRUE(residency.Take().empty());
}

TEST_F(BlockResidencyTest, ABlockThatNobodyAdoptsIsIdleFromTheBeginning) {
  BlockResidency residency = Sampling(1);
  residency.NoteAllocated(1, false);
  Pass(9);
  residency.NoteAllocated(1, true);
  const std::vector<BlockStay> stays = residency.Take();
  ASSERT_EQ(stays.size(), 1u);
  EXPECT_EQ(stays[0].idle, absl::Seconds(9));
  EXPECT_TRUE(stays[0].reuse_gaps.empty());
}

TEST_F(BlockResidencyTest, ContentsThatWereForgottenAreNoEviction) {
  BlockResidency residency = Sampling(1);
  residency.NoteAllocated(1, false);
  residency.NoteAllocated(1, /*was_cached=*/false);
  EXPECT_TRUE(residency.Take().empty());
}

TEST_F(BlockResidencyTest, TheSampleHasItsShare) {
  BlockResidency residency = Sampling(0.25);
  for (int id = 0; id < 4000; ++id) residency.NoteAllocated(id, false);
  for (int id = 0; id < 4000; ++id) residency.NoteAllocated(id, true);
  const size_t count = residency.Take().size();
  EXPECT_GT(count, 800u);
  EXPECT_LT(count, 1200u);
}

TEST_F(BlockResidencyTest, WhatNobodyTakesIsBounded) {
  BlockResidency residency = Sampling(1);
  for (int i = 0; i < 10000; ++i) residency.NoteAllocated(1, true);
  EXPECT_EQ(residency.Take().size(), BlockResidency::kMaxStays);
}

TEST_F(BlockResidencyTest, TheManagerTellsOfAdoptionsAndEvictions) {
  BlockManagerOptions options;
  options.num_blocks = 4;  // three, and the null block
  options.block_size = 2;
  options.watermark = 0;
  options.residency_sample = 1;
  options.residency_clock = [this] { return now_; };
  BlockManager manager(options);
  const std::vector<int32_t> prompt = {1, 2, 3}, other = {7, 8, 9, 10, 11, 12};
  const auto allocate = [&](int64_t sequence, const std::vector<int32_t>& tokens) {
    const int32_t found =
        manager.Allocate(sequence, tokens, "", /*use_cache=*/true, /*ignore_watermark=*/true);
    manager.Commit(sequence, tokens, static_cast<int64_t>(tokens.size()));
    return found;
  };
  EXPECT_EQ(allocate(1, prompt), 0);
  manager.Free(1);
  Pass(3);
  EXPECT_EQ(allocate(2, prompt), 2);
  manager.Free(2);
  Pass(4);
  EXPECT_EQ(allocate(3, other), 0);
  const std::vector<BlockStay> stays = manager.TakeStays();
  ASSERT_EQ(stays.size(), 1u) << "one block was cached";
  EXPECT_EQ(stays[0].lifetime, absl::Seconds(7));
  EXPECT_EQ(stays[0].idle, absl::Seconds(4));
}

}  // namespace
}  // namespace somnus
