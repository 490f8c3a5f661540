#include "coordinator/block_manager/block_manager.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

#include "tests/block_manager/small_blocks.h"

namespace somnus {
namespace {

BlockManagerOptions Options(int32_t num_blocks, int32_t block_size = 4, double watermark = 0) {
  BlockManagerOptions options{.num_blocks = num_blocks, .block_size = block_size, .watermark = watermark};
  return options;
}

TEST(BlockManagerTest, CanAllocateSaysOkLaterOrNever) {
  BlockManager manager(Options(11, 4, 0.2));  // 10 blocks, 2 of them kept back
  EXPECT_EQ(manager.CanAllocate(32, false), AllocStatus::kOk);
  EXPECT_EQ(manager.CanAllocate(33, false), AllocStatus::kLater);
  EXPECT_EQ(manager.CanAllocate(40, true), AllocStatus::kOk);
  EXPECT_EQ(manager.CanAllocate(41, true), AllocStatus::kNever);
  ASSERT_EQ(manager.Allocate(1, Tokens(12), "", true, false), 0);
  EXPECT_EQ(manager.CanAllocate(24, false), AllocStatus::kLater);
  EXPECT_EQ(manager.Allocate(2, Tokens(24, 50), "", true, false), -1);
  EXPECT_EQ(manager.pool().num_used(), 3);
  EXPECT_TRUE(manager.CheckIntegrity().ok());
}

// The share that admission leaves free is there for sequences that grow.
TEST(BlockManagerTest, CanAppendSaysOkLaterOrNever) {
  BlockManager manager(Options(11, 4, 0.2));  // 10 blocks, 2 of them kept back
  ASSERT_EQ(manager.Allocate(1, Tokens(12), "", true, false), 0);
  ASSERT_EQ(manager.Allocate(2, Tokens(20, 50), "", true, false), 0);
  EXPECT_EQ(manager.CanAllocate(1, false), AllocStatus::kLater);
  EXPECT_EQ(manager.CanAppend(1, 12), AllocStatus::kOk) << "its last block has room";
  EXPECT_EQ(manager.CanAppend(1, 20), AllocStatus::kOk);
  EXPECT_EQ(manager.CanAppend(1, 21), AllocStatus::kLater);
  EXPECT_EQ(manager.CanAppend(1, 40), AllocStatus::kLater) << "once it has the cache to itself";
  EXPECT_EQ(manager.CanAppend(1, 41), AllocStatus::kNever);
  std::vector<int32_t> ids;
  EXPECT_FALSE(manager.Grow(1, 21, &ids));
  EXPECT_TRUE(manager.Grow(1, 20, &ids));
  EXPECT_EQ(ids.size(), 2u);
  EXPECT_EQ(manager.CanAppend(2, 20), AllocStatus::kOk) << "though no block is free";
  EXPECT_EQ(manager.CanAppend(2, 21), AllocStatus::kLater);
  manager.Free(2);
  EXPECT_EQ(manager.CanAppend(1, 40), AllocStatus::kOk);
  EXPECT_TRUE(manager.CheckIntegrity().ok());
}

TEST(BlockManagerTest, APrefixIsAdoptedInWholeBlocksAndTheLastTokenIsLeft) {
  BlockManager manager(Options(20));
  const std::vector<int32_t> tokens = Tokens(12);
  ASSERT_EQ(manager.Allocate(1, tokens, "", true, false), 0);
  manager.Commit(1, tokens, 12);
  EXPECT_EQ(manager.Allocate(2, tokens, "", true, false), 8) << "a full hit computes the last block again";
  EXPECT_EQ(manager.Allocate(3, Tokens(13), "", true, false), 12);
  EXPECT_EQ(manager.Table(3)[2], manager.Table(1)[2]);
  EXPECT_NE(manager.Table(2)[2], manager.Table(1)[2]);
  std::vector<int32_t> other = Tokens(12);
  other[5] = 99;
  EXPECT_EQ(manager.Allocate(4, other, "", true, false), 4);
  EXPECT_EQ(manager.Allocate(5, tokens, "salt", true, false), 0);
  EXPECT_EQ(manager.Allocate(6, tokens, "", false, false), 0);
  EXPECT_TRUE(manager.CheckIntegrity().ok());
}

TEST(BlockManagerTest, OnlyCommittedBlocksAreFoundAndAlsoAfterTheirOwnerIsGone) {
  BlockManager manager(Options(20));
  const std::vector<int32_t> tokens = Tokens(12);
  manager.Allocate(1, tokens, "", true, false);
  manager.Commit(1, tokens, 7);
  manager.Free(1);
  EXPECT_EQ(manager.pool().num_used(), 0);
  EXPECT_EQ(manager.pool().num_cached(), 1);
  EXPECT_EQ(manager.pool().num_free(), 19);
  EXPECT_EQ(manager.Allocate(2, tokens, "", true, false), 4);
  EXPECT_TRUE(manager.CheckIntegrity().ok());
}

TEST(BlockManagerTest, TailsAreEvictedFirst) {
  BlockManager manager(Options(4));  // 3 blocks
  const std::vector<int32_t> tokens = Tokens(12);
  manager.Allocate(1, tokens, "", true, false);
  manager.Commit(1, tokens, 12);
  manager.Free(1);
  manager.Allocate(2, Tokens(4, 100), "", true, false);
  manager.Free(2);
  EXPECT_EQ(manager.Allocate(3, tokens, "", true, false), 8);
}

TEST(BlockManagerTest, TwoThatComputeTheSameMeetInOneChain) {
  BlockManager manager(Options(20));
  const std::vector<int32_t> tokens = Tokens(12);
  manager.Allocate(1, tokens, "", true, false);
  manager.Allocate(2, tokens, "", true, false);  // before 1 is committed
  manager.Commit(1, tokens, 4);
  manager.Commit(2, tokens, 12);
  manager.Commit(1, tokens, 12);
  EXPECT_EQ(manager.Allocate(3, Tokens(13), "", true, false), 12);
  EXPECT_TRUE(manager.CheckIntegrity().ok());
}

TEST(BlockManagerTest, GrowIsAllOrNothing) {
  BlockManager manager(Options(4));
  manager.Allocate(1, Tokens(4), "", true, true);
  std::vector<int32_t> ids;
  EXPECT_TRUE(manager.Grow(1, 4, &ids));
  EXPECT_TRUE(ids.empty());
  EXPECT_FALSE(manager.Grow(1, 17, &ids));
  EXPECT_TRUE(ids.empty());
  EXPECT_TRUE(manager.Grow(1, 12, &ids));
  EXPECT_EQ(ids, (std::vector<int32_t>{2, 3}));
  EXPECT_EQ(manager.Table(1), (std::vector<int32_t>{1, 2, 3}));
}

TEST(BlockManagerTest, AForkSharesUntilItWrites) {
  BlockManager manager(Options(10));
  manager.Allocate(1, Tokens(6), "", true, false);
  manager.sharing().Fork(1, 2);
  EXPECT_EQ(manager.pool().num_used(), 2);
  std::vector<BlockCopyOp> copies;
  ASSERT_TRUE(manager.sharing().MakeWritable(2, 6, &copies));
  ASSERT_EQ(copies.size(), 1u);
  EXPECT_EQ(copies[0].src, manager.Table(1)[1]);
  EXPECT_EQ(copies[0].dst, manager.Table(2)[1]);
  EXPECT_EQ(manager.Table(1)[0], manager.Table(2)[0]);
  ASSERT_TRUE(manager.sharing().MakeWritable(1, 6, &copies));
  EXPECT_EQ(copies.size(), 1u) << "the parent's is its own again";
  manager.Free(1);
  manager.Free(2);
  EXPECT_EQ(manager.pool().num_used(), 0);
  EXPECT_TRUE(manager.CheckIntegrity().ok());
}

TEST(BlockManagerTest, AfterAResetNothingIsFoundAndNothingFollowsABrokenChain) {
  BlockManager manager(Options(20));
  const std::vector<int32_t> tokens = Tokens(12);
  manager.Allocate(1, tokens, "", true, false);
  manager.Commit(1, tokens, 4);
  manager.ResetPrefixCache();
  manager.Commit(1, tokens, 12);
  EXPECT_EQ(manager.Allocate(2, tokens, "", true, false), 0);
  EXPECT_EQ(manager.pool().num_cached(), 0);
  EXPECT_TRUE(manager.CheckIntegrity().ok());
}

TEST(BlockManagerTest, AForgottenPrefixIsNotAdopted) {
  BlockManager manager(Options(20));
  const std::vector<int32_t> tokens = Tokens(12), other = Tokens(12, 50);
  manager.Allocate(1, tokens, "", true, false);
  manager.Allocate(2, other, "", true, false);
  manager.Commit(1, tokens, 12);
  manager.Commit(2, other, 12);
  manager.Free(2);
  manager.cache().ForgetPrefix(other, "salt");
  manager.cache().ForgetPrefix(tokens, "");  // in use
  manager.cache().ForgetPrefix(other, "");   // cached
  EXPECT_EQ(manager.pool().num_cached(), 0);
  EXPECT_TRUE(manager.CheckIntegrity().ok());
  EXPECT_EQ(manager.Allocate(3, tokens, "", true, false), 0);
  EXPECT_EQ(manager.Allocate(4, other, "", true, false), 0);
  // The blocks that follow a forgotten block are not found either.
  std::vector<int32_t> longer = tokens;
  longer.insert(longer.end(), 4, 7);
  std::vector<int32_t> ids;
  manager.Grow(1, 16, &ids);
  manager.Commit(1, longer, 16);
  manager.Commit(3, tokens, 12);
  EXPECT_EQ(manager.Allocate(5, longer, "", true, false), 12);
  EXPECT_TRUE(manager.CheckIntegrity().ok());
}

TEST(BlockManagerTest, BlocksMissingIsWhatAllocateLacks) {
  BlockManager manager(Options(11, 4, 0.2));  // 10 blocks, 2 of them kept back
  const std::vector<int32_t> cached = Tokens(9), tokens = Tokens(44);
  manager.Allocate(1, cached, "", true, false);
  manager.Commit(1, cached, 9);
  manager.Free(1);
  manager.Allocate(2, Tokens(8, 100), "", true, false);
  // The tokens take 11 blocks, 2 of which are cached and become used; 8 of the 10 blocks are free or cached.
  EXPECT_EQ(manager.BlocksMissing(3, tokens, "", true, false), 9 + 2 - 6);
  EXPECT_EQ(manager.BlocksMissing(3, tokens, "", false, true), 11 - 8);
  EXPECT_EQ(manager.BlocksMissing(4, Tokens(16, 50), "", true, false), 4 + 2 - 8);
  EXPECT_EQ(manager.cache().CountCached(3, tokens, ""), 8);
  EXPECT_EQ(manager.pool().num_used(), 2);
  EXPECT_TRUE(manager.CheckIntegrity().ok());
}

TEST(BlockManagerTest, ALimitIsForNowAndTheWholeForEver) {
  BlockManager manager(Options(21, 4, 0.1));
  ASSERT_EQ(manager.Allocate(1, Tokens(24), "", true, false), 0);  // blocks 1 to 6
  manager.SetLimit(5);
  EXPECT_EQ(manager.EndOfUsed(), 7);
  EXPECT_EQ(manager.pool().num_free(), 0);
  EXPECT_EQ(manager.pool().num_total(), 6);
  EXPECT_EQ(manager.CanAllocate(80, true), AllocStatus::kLater);
  EXPECT_EQ(manager.CanAllocate(81, true), AllocStatus::kNever);
  std::vector<int32_t> ids;
  EXPECT_FALSE(manager.Grow(1, 25, &ids));
  EXPECT_EQ(manager.CanAppend(1, 24), AllocStatus::kOk) << "what it has beyond the limit stays";
  EXPECT_EQ(manager.CanAppend(1, 80), AllocStatus::kLater);
  EXPECT_EQ(manager.CanAppend(1, 81), AllocStatus::kNever);
  // Only four of the sequence's six blocks become free again.
  BlockManager::FreedBlocks freed;
  freed.Add(manager, 1);
  EXPECT_EQ(freed.count(), 4);
  manager.Free(1);
  EXPECT_EQ(manager.pool().num_free(), 4);
  EXPECT_EQ(manager.EndOfUsed(), 0);
  EXPECT_EQ(manager.CanAllocate(16, false), AllocStatus::kOk);  // a tenth of the limit is no block
  EXPECT_EQ(manager.CanAllocate(17, true), AllocStatus::kLater);
  manager.SetLimit(21);
  EXPECT_EQ(manager.CanAllocate(80, true), AllocStatus::kOk);
  EXPECT_TRUE(manager.CheckIntegrity().ok()) << manager.CheckIntegrity();
}

TEST(BlockManagerTest, FreedBlocksCountSharedOnesOnce) {
  BlockManager manager(Options(20));
  const std::vector<int32_t> tokens = Tokens(10);
  manager.Allocate(1, tokens, "", true, false);
  manager.Commit(1, tokens, 10);
  manager.Allocate(2, tokens, "", true, false);
  manager.Allocate(3, tokens, "", true, false);
  BlockManager::FreedBlocks freed;
  freed.Add(manager, 1);
  EXPECT_EQ(freed.count(), 1) << "two of three blocks are the others', too";
  freed.Add(manager, 3);
  EXPECT_EQ(freed.count(), 2);
  freed.Add(manager, 2);
  EXPECT_EQ(freed.count(), 5);
}

TEST(BlockManagerTest, NoBlockOfASequenceIsHashedTwice) {
  BlockManager manager(Options(6));  // 5 blocks
  std::vector<int32_t> tokens = Tokens(14);
  manager.Allocate(1, tokens, "", true, false);
  EXPECT_EQ(manager.cache().num_blocks_hashed(), 1) << "up to the first that is not cached";
  manager.Commit(1, tokens, 14);
  EXPECT_EQ(manager.cache().num_blocks_hashed(), 3);
  const std::vector<int32_t> longer = Tokens(24);
  for (int i = 0; i < 5; ++i) EXPECT_EQ(manager.Allocate(2, longer, "", true, false), -1);
  EXPECT_EQ(manager.cache().num_blocks_hashed(), 3 + 4);
  manager.cache().Withdraw(2);
  EXPECT_EQ(manager.Allocate(2, longer, "", true, false), -1);
  EXPECT_EQ(manager.cache().num_blocks_hashed(), 3 + 4 + 4);
}

// A part of the blocks at each call, and all blocks after some calls.
TEST(BlockManagerTest, TheNextBlocksAreCheckedUntilAllWere) {
  constexpr int32_t kParts = 3;
  BlockManagerOptions options{.num_blocks = kParts * BlockManager::kCheckedBlocks, .block_size = 1};
  BlockManager manager(options);
  const std::vector<int32_t> tokens = {1, 2, 3};
  manager.Allocate(1, tokens, "", true, false);
  manager.Commit(1, tokens, 3);
  for (int part = 0; part < 2 * kParts; ++part) EXPECT_TRUE(manager.CheckNextBlocks().ok());
  manager.Free(1);
  for (int part = 0; part < 2 * kParts; ++part) EXPECT_TRUE(manager.CheckNextBlocks().ok());
  // A reference that nobody has.
  const_cast<KvBlock*>(manager.pool().block(options.num_blocks - 1))->ref_count = 1;
  for (int round = 0; round < 2; ++round) {
    for (int part = 0; part < kParts; ++part)
      EXPECT_EQ(manager.CheckNextBlocks().ok(), part < kParts - 1) << "round " << round << ", part " << part;
  }
}

// Blocks that no sequence gives back are seen at once, in any place.
TEST(BlockManagerTest, WhatIsUsedWithoutASequenceIsAnError) {
  BlockManagerOptions options{.num_blocks = 4 * BlockManager::kCheckedBlocks, .block_size = 1};
  BlockManager manager(options);
  EXPECT_TRUE(manager.CheckNextBlocks().ok());
  const_cast<BlockPool&>(manager.pool()).Allocate();
  EXPECT_TRUE(absl::IsInternal(manager.CheckNextBlocks()));
}

TEST(BlockManagerTest, RandomSequencesKeepTheBooks) {
  for (uint32_t seed = 1; seed <= 15; ++seed) {
    std::mt19937 random(seed);
    BlockManager manager(
        Options(3 + static_cast<int32_t>(random() % 40), 1 + static_cast<int32_t>(random() % 5), 0.05));
    std::map<int64_t, std::vector<int32_t>> live;
    int64_t next_id = 1;
    for (int step = 0; step < 1500; ++step) {
      const uint32_t operation = random() % 6;
      auto it = live.begin();
      if (!live.empty()) std::advance(it, random() % live.size());
      if (operation <= 1) {
        // There are few different prompts, so that sequences share prefixes.
        const std::vector<int32_t> tokens =
            Tokens(1 + static_cast<int32_t>(random() % 30), static_cast<int32_t>(random() % 2));
        const int32_t computed =
            manager.Allocate(next_id, tokens, random() % 2 ? "" : "s", random() % 4 != 0, live.empty());
        if (computed >= 0) {
          ASSERT_EQ(computed % manager.block_size(), 0);
          ASSERT_LT(computed, static_cast<int32_t>(tokens.size()));
          live[next_id++] = tokens;
        }
      } else if (live.empty()) {
        continue;
      } else if (operation == 2) {
        manager.Free(it->first);
        live.erase(it);
      } else if (operation == 3) {
        std::vector<int32_t> ids;
        it->second.push_back(static_cast<int32_t>(random() % 3));
        if (!manager.Grow(it->first, static_cast<int64_t>(it->second.size()), &ids)) it->second.pop_back();
      } else if (operation == 4) {
        manager.Commit(it->first, it->second, static_cast<int64_t>(random() % (it->second.size() + 1)));
      } else if (random() % 20 == 0) {
        manager.ResetPrefixCache();
      } else {
        const std::vector<int32_t> tokens = it->second;
        manager.sharing().Fork(it->first, next_id);
        live[next_id++] = tokens;
      }
      const absl::Status integrity = manager.CheckIntegrity();
      ASSERT_TRUE(integrity.ok()) << integrity << " seed " << seed << " step " << step;
    }
  }
}

// A query at 16 that attends 6 tokens attends the tokens from 11 on; token 11 is in the third block.
TEST(BlockManagerTest, BlocksBeforeTheReachAreGivenBackAndStayCached) {
  BlockManagerOptions options = Options(20);
  options.attention_reach = 6;
  BlockManager manager(options);
  const std::vector<int32_t> tokens = Tokens(20);
  ASSERT_EQ(manager.Allocate(1, tokens, "", true, false), 0);
  manager.Commit(1, tokens, 4);
  EXPECT_EQ(manager.GiveBackUnseen(1, 16), 1) << "what the cache does not know yet stays";
  manager.Commit(1, tokens, 20);
  EXPECT_EQ(manager.GiveBackUnseen(1, 16), 1);
  EXPECT_EQ(manager.GiveBackUnseen(1, 16), 0);
  const std::vector<int32_t> table = manager.Table(1);
  EXPECT_EQ(std::vector<int32_t>(table.begin(), table.begin() + 2), (std::vector<int32_t>{0, 0}));
  EXPECT_NE(table[2], 0);
  EXPECT_EQ(manager.pool().num_used(), 3);
  EXPECT_TRUE(manager.CheckIntegrity().ok());

  EXPECT_EQ(manager.Allocate(2, tokens, "", true, false), 16) << "the beginning is found in the cache";
  manager.sharing().Fork(1, 3);
  BlockManager::FreedBlocks freed;
  for (const int64_t sequence : {1, 2, 3}) freed.Add(manager, sequence);
  EXPECT_EQ(freed.count(), 4) << "2 of the window that are shared, the fork's last one, and the other's own";
  EXPECT_TRUE(manager.CheckIntegrity().ok());
  for (const int64_t sequence : {1, 2, 3}) manager.Free(sequence);
  EXPECT_EQ(manager.pool().num_used(), 0);
  EXPECT_TRUE(manager.CheckIntegrity().ok());
}

// Bad contents are forgotten up to the end of the chain, also behind blocks that are lost.
TEST(BlockManagerTest, ForgettingABeginningLooksBehindLostBlocks) {
  for (const bool forgets : {false, true}) {
    BlockManagerOptions options = Options(9);
    options.attention_reach = 6;
    BlockManager manager(options);
    const std::vector<int32_t> tokens = Tokens(20), others = {90, 91, 92, 93, 94, 95, 96, 97};
    ASSERT_EQ(manager.Allocate(1, tokens, "", true, false), 0);
    manager.Commit(1, tokens, 20);
    manager.GiveBackUnseen(1, 19);
    manager.Free(1);
    ASSERT_EQ(manager.Allocate(2, others, "", false, false), 0);
    std::vector<int32_t> ids;
    ASSERT_TRUE(manager.Grow(2, 5 * 4, &ids));  // evicts the two blocks that were given back
    if (forgets) manager.cache().ForgetPrefix(tokens, "");
    EXPECT_EQ(manager.cache().CountCached(3, tokens, ""), forgets ? 0 : 16);
    EXPECT_EQ(manager.cache().CountCached(4, tokens, "salt"), 0);
    std::vector<int32_t> changed = tokens;
    changed[1] = 99;  // in a lost block
    EXPECT_EQ(manager.cache().CountCached(5, changed, ""), 0);
    EXPECT_TRUE(manager.CheckIntegrity().ok());
  }
}

TEST(BlockManagerTest, WithoutAReachNothingIsGivenBack) {
  BlockManager manager(Options(20));
  const std::vector<int32_t> tokens = Tokens(20);
  ASSERT_EQ(manager.Allocate(1, tokens, "", true, false), 0);
  manager.Commit(1, tokens, 20);
  EXPECT_EQ(manager.GiveBackUnseen(1, 20), 0);
  EXPECT_EQ(manager.pool().num_used(), 5);
}

}  // namespace
}  // namespace somnus
