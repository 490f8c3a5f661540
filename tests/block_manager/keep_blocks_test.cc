// The blocks that outlive a sleep of the cache, and the books of the host tier.

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "tests/block_manager/small_blocks.h"

namespace somnus {
namespace {

// A sequence whose tokens are all computed.
void AddComputed(BlockManager* manager, int64_t id, const std::vector<int32_t>& tokens) {
  ASSERT_GE(manager->Allocate(id, tokens, "", true, false), 0);
  manager->Commit(id, tokens, static_cast<int64_t>(tokens.size()));
}

std::vector<int32_t> DeviceBlocks(const BlockManager& manager) {
  std::vector<int32_t> ids;
  for (const KeptBlock& kept : manager.kept().blocks()) ids.push_back(kept.device_block);
  return ids;
}

TEST(HostBlockPoolTest, TheLowestComeFirstAndThenTheLastReleased) {
  HostBlockPool pool(4);
  EXPECT_EQ(pool.Allocate(), 0);
  EXPECT_EQ(pool.Allocate(), 1);
  EXPECT_EQ(pool.num_used(), 2);
  pool.Release(0);
  EXPECT_FALSE(pool.is_used(0));
  EXPECT_EQ(pool.Allocate(), 0);
  EXPECT_EQ(pool.Allocate(), 2);
  EXPECT_EQ(pool.num_free(), 1);
  EXPECT_FALSE(pool.is_used(4));
  EXPECT_FALSE(pool.is_used(-1));
  EXPECT_TRUE(pool.CheckIntegrity().ok());
  EXPECT_EQ(HostBlockPool(0).num_total(), 0);
}

TEST(KeepBlocksTest, SequencesComeFirstWithWhatTheyHaveComputedAndThenTheCache) {
  BlockManager manager(SmallBlocks(20, 10));
  AddComputed(&manager, 1, Tokens(8));
  manager.Free(1);  // blocks 1 and 2 are cached
  AddComputed(&manager, 2, Tokens(6, 100));
  ASSERT_EQ(manager.Allocate(3, Tokens(40, 200), "", true, false), 0);
  const std::vector<int32_t> running = manager.Table(2), prefilling = manager.Table(3);
  EXPECT_TRUE(manager.kept().Choose({{2, 6}, {3, 9}}).empty());
  EXPECT_EQ(DeviceBlocks(manager),
            (std::vector<int32_t>{running[0], running[1], prefilling[0], prefilling[1], prefilling[2], 1, 2}))
      << "a block without a computed token holds nothing";
  EXPECT_EQ(manager.host().pool().num_used(), 7);
  EXPECT_EQ(manager.pool().num_cached(), 2) << "nothing else has changed";
  EXPECT_TRUE(manager.CheckIntegrity().ok());
  manager.kept().ForgetOthers();
  EXPECT_EQ(manager.pool().num_cached(), 2);
  manager.kept().Release();
  EXPECT_EQ(manager.host().pool().num_used(), 0);
  EXPECT_EQ(manager.Table(3), prefilling);
  EXPECT_EQ(manager.Allocate(4, Tokens(9), "", true, false), 8);
  EXPECT_TRUE(manager.CheckIntegrity().ok());
}

TEST(KeepBlocksTest, WhatHasNoRoomIsForgotten) {
  BlockManager manager(SmallBlocks(30, 4));
  for (const int32_t first : {0, 50, 100}) {  // the last block is the most recently used
    AddComputed(&manager, 1 + first, Tokens(8, first));
    manager.Free(1 + first);
  }
  EXPECT_TRUE(manager.kept().Choose({}).empty());
  manager.kept().ForgetOthers();
  EXPECT_EQ(manager.host().pool().num_used(), 4);
  EXPECT_EQ(manager.pool().num_cached(), 4);
  EXPECT_EQ(manager.cache().CountCached(200, Tokens(9), ""), 0);
  EXPECT_EQ(manager.cache().CountCached(201, Tokens(9, 50), ""), 8);
  EXPECT_EQ(manager.cache().CountCached(202, Tokens(9, 100), ""), 8);
  EXPECT_TRUE(manager.CheckIntegrity().ok());
}

// The blocks that a preempted sequence can adopt again are kept as far as there is room.
TEST(KeepBlocksTest, ASequenceIsKeptWholeOrNotAtAll) {
  BlockManager manager(SmallBlocks(30, 4));
  AddComputed(&manager, 1, Tokens(8));
  manager.Free(1);
  AddComputed(&manager, 3, Tokens(14, 100));
  AddComputed(&manager, 4, Tokens(6, 200));
  EXPECT_EQ(manager.kept().Choose({{4, 6}, {3, 14}}), (std::vector<int64_t>{3}));
  manager.Free(3);
  manager.kept().ForgetOthers();
  EXPECT_EQ(manager.host().pool().num_used(), 4);
  EXPECT_EQ(manager.cache().CountCached(200, Tokens(9), ""), 0);
  EXPECT_EQ(manager.cache().CountCached(201, Tokens(14, 100), ""), 8);
  EXPECT_EQ(manager.cache().CountCached(202, Tokens(6, 200), ""), 4);
  EXPECT_EQ(manager.pool().num_used(), 2) << "the one that is kept";
  EXPECT_TRUE(manager.CheckIntegrity().ok());
}

TEST(KeepBlocksTest, OfAChainTheBeginningIsKept) {
  BlockManager manager(SmallBlocks(30, 2));
  AddComputed(&manager, 1, Tokens(16));
  manager.Free(1);
  EXPECT_TRUE(manager.kept().Choose({}).empty());
  manager.kept().ForgetOthers();
  EXPECT_EQ(manager.cache().CountCached(105, Tokens(17), ""), 8);
}

TEST(KeepBlocksTest, ASharedBlockIsKeptOnce) {
  BlockManager manager(SmallBlocks(30, 3));
  AddComputed(&manager, 1, Tokens(8));
  std::vector<int32_t> longer = Tokens(12);
  AddComputed(&manager, 2, longer);
  EXPECT_TRUE(manager.kept().Choose({{1, 8}, {2, 12}}).empty());
  EXPECT_EQ(manager.host().pool().num_used(), 3);
  EXPECT_TRUE(manager.CheckIntegrity().ok());
}

TEST(KeepBlocksTest, LimitsAreKeptWhereTheTierHasMoreRoom) {
  BlockManager manager(SmallBlocks(30, 20));
  AddComputed(&manager, 1, Tokens(8));
  manager.Free(1);  // two cached blocks
  AddComputed(&manager, 2, Tokens(6, 100));
  AddComputed(&manager, 3, Tokens(14, 200));
  EXPECT_EQ(manager.kept().Choose({{2, 6}, {3, 14}}, {.num_blocks = 4}), (std::vector<int64_t>{3}));
  EXPECT_EQ(manager.host().pool().num_used(), 4) << "the first sequence, and the beginning of the other one";
  manager.kept().Release();
  EXPECT_TRUE(manager.kept().Choose({{2, 6}, {3, 14}}, {.cached_blocks = false}).empty());
  EXPECT_EQ(manager.host().pool().num_used(), 6) << "no block that nobody holds";
  manager.kept().Release();
  EXPECT_EQ(manager.kept().Choose({{2, 6}, {3, 14}}, {.num_blocks = 0}), (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(manager.host().pool().num_used(), 0);
  EXPECT_TRUE(manager.CheckIntegrity().ok());
}

TEST(KeepBlocksTest, WithoutAHostTierNothingIsKept) {
  BlockManager manager(SmallBlocks(30, 0));
  AddComputed(&manager, 1, Tokens(8));
  EXPECT_EQ(manager.kept().Choose({{1, 8}}), (std::vector<int64_t>{1}));
  manager.Free(1);
  manager.kept().ForgetOthers();
  EXPECT_EQ(manager.pool().num_cached(), 0);
  EXPECT_EQ(manager.pool().num_free(), 29);
  EXPECT_TRUE(manager.CheckIntegrity().ok());
}

TEST(KeepBlocksTest, AResetInBetweenForgetsTheCacheAndTheSleepCanBeUndone) {
  BlockManager manager(SmallBlocks(30, 8));
  AddComputed(&manager, 1, Tokens(8));
  manager.Free(1);
  manager.kept().Choose({});
  manager.ResetPrefixCache();
  EXPECT_TRUE(manager.CheckIntegrity().ok());
  manager.kept().Release();
  AddComputed(&manager, 2, Tokens(8, 50));
  manager.Free(2);
  manager.kept().Choose({});
  manager.kept().Release();
  EXPECT_EQ(manager.cache().CountCached(106, Tokens(9, 50), ""), 8);
  EXPECT_TRUE(manager.CheckIntegrity().ok());
}

// Random tables, sleeps that happen and sleeps that do not: every block found in the cache afterwards was
// kept.
TEST(KeepBlocksTest, TheBooksHoldThroughRandomSleeps) {
  for (uint32_t seed = 1; seed <= 200; ++seed) {
    std::mt19937 random(seed);
    const auto below = [&](uint32_t bound) { return static_cast<int32_t>(random() % bound); };
    BlockManager manager(SmallBlocks(20 + below(20), below(25)));
    std::vector<ComputedTokens> live;
    for (int64_t id = 1; id <= 60; ++id) {
      const std::vector<int32_t> tokens = Tokens(1 + below(20), below(4) * 100);
      if (manager.Allocate(id, tokens, "", true, true) >= 0) {
        manager.Commit(id, tokens, static_cast<int64_t>(tokens.size()));
        live.push_back({id, static_cast<int64_t>(tokens.size())});
      }
      const auto release = [&](size_t at) {
        manager.Free(live[at].sequence);
        live.erase(live.begin() + static_cast<int64_t>(at));
      };
      if (!live.empty() && below(2) == 0) release(random() % live.size());
      if (below(4) == 0) {
        const std::vector<int64_t> without_room = manager.kept().Choose(live);
        ASSERT_TRUE(manager.CheckIntegrity().ok()) << "seed " << seed;
        if (below(3) > 0) {
          for (const int64_t left_out : without_room) {
            release(std::find_if(live.begin(), live.end(),
                                 [&](const auto& one) { return one.sequence == left_out; }) -
                    live.begin());
          }
          manager.kept().ForgetOthers();
          ASSERT_LE(manager.pool().num_used() == 0 ? manager.pool().num_cached() : 0,
                    manager.host().pool().num_used());
        }
        if (!live.empty() && below(3) == 0) release(random() % live.size());  // aborted during the sleep
        ASSERT_TRUE(manager.CheckIntegrity().ok()) << "seed " << seed;
        manager.kept().Release();
      }
      const absl::Status integrity = manager.CheckIntegrity();
      ASSERT_TRUE(integrity.ok()) << integrity << " seed " << seed;
    }
  }
}

}  // namespace
}  // namespace somnus
