// The draft model's part of each block goes with the block, and no farther than the computed tokens.

#include "worker/runner/draft_blocks.h"

#include <gtest/gtest.h>

namespace somnus {
namespace {

using Blocks = std::vector<int32_t>;

class DraftBlocksTest : public testing::Test {
 protected:
  DraftBlocksTest() { blocks_.Reset(10); }

  DraftBlocks blocks_{/*block_size=*/4};
};

TEST_F(DraftBlocksTest, TokensCountUpToTheFirstThatIsMissing) {
  EXPECT_EQ(blocks_.NumTokens(Blocks{1, 2, 3}), 0);
  blocks_.NoteComputed(Blocks{1, 2, 3}, 0, 6);
  EXPECT_EQ(blocks_.NumTokens(Blocks{1, 2, 3}), 6);
  blocks_.NoteComputed(Blocks{1, 2, 3}, 6, 9);
  EXPECT_EQ(blocks_.NumTokens(Blocks{1, 2, 3}), 9);
  EXPECT_EQ(blocks_.NumTokens(Blocks{1, 2}), 8);
  EXPECT_EQ(blocks_.NumTokens(Blocks{1, 5, 2}), 4);
  EXPECT_EQ(blocks_.NumTokens(Blocks{5, 1}), 0);
  blocks_.Reset(10);
  EXPECT_EQ(blocks_.NumTokens(Blocks{1, 2, 3}), 0);
}

// The second sequence has computed fewer tokens of the shared block than were known.
TEST_F(DraftBlocksTest, WhatIsKnownOfASharedBlockStays) {
  blocks_.NoteComputed(Blocks{1, 2}, 0, 8);
  blocks_.NoteComputed(Blocks{1, 3}, 0, 2);
  EXPECT_EQ(blocks_.NumTokens(Blocks{1, 2}), 8);
}

TEST_F(DraftBlocksTest, ABlockEntersWithNoMoreThanIsComputed) {
  blocks_.NoteComputed(Blocks{1, 2}, 0, 8);
  blocks_.Enter(1, 0, 8);
  blocks_.Enter(2, 1, 8);
  EXPECT_EQ(blocks_.NumTokens(Blocks{1, 2}), 8) << "of the same prefix";
  blocks_.Enter(2, 1, 6);
  EXPECT_EQ(blocks_.NumTokens(Blocks{1, 2}), 6);
  blocks_.Enter(1, 2, 8);
  EXPECT_EQ(blocks_.NumTokens(Blocks{1}), 0) << "it is free for another sequence";
}

TEST_F(DraftBlocksTest, ItGoesWithCopiesAndThroughTheHostTier) {
  blocks_.NoteComputed(Blocks{1}, 0, 3);
  blocks_.Copy(1, 4);
  EXPECT_EQ(blocks_.NumTokens(Blocks{4}), 3);
  blocks_.SwapOut(1, 70);
  blocks_.Enter(1, 0, 0);
  blocks_.SwapIn(6, 70);
  EXPECT_EQ(blocks_.NumTokens(Blocks{6}), 3);
  EXPECT_EQ(blocks_.NumTokens(Blocks{1}), 0);
  blocks_.SwapIn(6, 69);
  EXPECT_EQ(blocks_.NumTokens(Blocks{6}), 0);
  blocks_.SwapIn(4, 1000);
  EXPECT_EQ(blocks_.NumTokens(Blocks{4}), 0) << "nothing is known of it";
}

}  // namespace
}  // namespace somnus
