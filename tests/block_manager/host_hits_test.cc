// The prefix cache in the host tier: blocks that the device loses are found there, and no other blocks.

#include <gtest/gtest.h>

#include <map>
#include <random>

#include "tests/block_manager/small_blocks.h"

namespace somnus {
namespace {

using Copies = std::vector<BlockCopyOp>;

// A manager that reads the host's cache, and whose stores are ready at once.
struct Manager : BlockManager {
  Manager(int32_t num_blocks, int32_t num_host_blocks)
      : BlockManager(SmallBlocks(num_blocks, num_host_blocks)) {
    cache().SetReadsHost(true);
  }
  // Computes and ends a sequence. Returns how many tokens were found.
  int32_t Compute(int64_t id, const std::vector<int32_t>& tokens) {
    const int32_t cached = Allocate(id, tokens, "", true, false);
    EXPECT_GE(cached, 0);
    Commit(id, tokens, static_cast<int64_t>(tokens.size()));
    Free(id);
    Check();
    return cached;
  }
  Copies Store(int32_t count) {
    Copies outs;
    const std::vector<uint64_t> stored = cache().StoreOnHost(count, ++step, &outs);
    EXPECT_EQ(stored.size(), outs.size());
    host_cache().NoteStored(stored, step, true);
    Check();
    return outs;
  }
  void Check() const {
    const absl::Status status = CheckIntegrity();
    EXPECT_TRUE(status.ok()) << status;
  }
  int64_t step = 0;
};

TEST(HostHitsTest, WhatTheDeviceLosesIsFound) {
  Manager manager(1 + 4, 10);
  manager.Compute(1, Tokens(12));
  const Copies outs = manager.Store(16);
  EXPECT_EQ(outs.size(), 3u);
  EXPECT_EQ(manager.host().pool().num_used(), 3);
  EXPECT_EQ(manager.host().cache().size(), 3);
  EXPECT_TRUE(manager.Store(16).empty()) << "they are there";
  manager.Compute(2, Tokens(16, 100));
  EXPECT_EQ(manager.cache().CountCached(3, Tokens(13), ""), 12);
  EXPECT_EQ(manager.Allocate(3, Tokens(13), "", true, false), 12);
  const Copies ins = manager.cache().TakeHostHits();
  ASSERT_EQ(ins.size(), 3u);
  // The first of the sequence was the last to be given up.
  std::map<int32_t, int32_t> host_of;
  for (const BlockCopyOp& out : outs) host_of[out.src] = out.dst;
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(ins[i].dst, manager.Table(3)[i]);
  EXPECT_TRUE(manager.cache().TakeHostHits().empty());
  manager.Check();
  // Other sequences share the copied blocks.
  EXPECT_EQ(manager.cache().CountCached(4, Tokens(13), ""), 12);
  manager.Free(3);
  EXPECT_TRUE(manager.Store(16).size() <= 1u) << "the copies have stayed there";
}

TEST(HostHitsTest, OnlyOnceAllRanksHaveThem) {
  Manager manager(1 + 4, 10);
  manager.Compute(1, Tokens(12));
  Copies outs;
  const std::vector<uint64_t> stored = manager.cache().StoreOnHost(2, 1, &outs);
  ASSERT_EQ(stored.size(), 2u);
  manager.Compute(2, Tokens(16, 100));
  EXPECT_EQ(manager.cache().CountCached(3, Tokens(13), ""), 0);
  manager.host_cache().NoteStored(stored, 1, false);
  EXPECT_EQ(manager.host().pool().num_used(), 0);
  manager.Check();
}

TEST(HostHitsTest, WhoDoesNotReadItFindsNothing) {
  Manager manager(1 + 4, 10);
  manager.Compute(1, Tokens(12));
  manager.Store(16);
  manager.Compute(2, Tokens(16, 100));
  manager.cache().SetReadsHost(false);
  EXPECT_EQ(manager.cache().CountCached(3, Tokens(13), ""), 0);
  EXPECT_EQ(manager.Allocate(3, Tokens(13), "", true, false), 0);
  EXPECT_TRUE(manager.cache().TakeHostHits().empty());
  // The sequence computes the content that is known there already.
  manager.Commit(3, Tokens(13), 13);
  manager.Free(3);
  EXPECT_TRUE(manager.Store(16).empty());
  EXPECT_EQ(manager.host().cache().size(), 3);
}

TEST(HostHitsTest, AChainGoesOnOverBothSides) {
  Manager manager(1 + 6, 10);
  manager.Compute(1, Tokens(16));
  EXPECT_EQ(manager.Store(2).size(), 2u) << "tails go first";
  manager.Compute(2, Tokens(16, 100));  // takes two unknown blocks and the two tails
  EXPECT_EQ(manager.Allocate(3, Tokens(17), "", true, false), 16);
  EXPECT_EQ(manager.cache().TakeHostHits().size(), 2u);
  manager.Check();
}

TEST(HostHitsTest, SequencesThatAreSwappedOutComeFirst) {
  Manager manager(1 + 8, 4);
  manager.Compute(1, Tokens(16));
  EXPECT_EQ(manager.Store(16).size(), 4u);
  ASSERT_GE(manager.Allocate(2, Tokens(12, 100), "", true, false), 0);
  EXPECT_EQ(manager.host().CanTake(4), AllocStatus::kOk);
  EXPECT_EQ(manager.host().CanTake(5), AllocStatus::kNever);
  Copies outs;
  manager.swapped().SwapOut({{{2, 12}}}, &outs);
  manager.Check();
  EXPECT_EQ(manager.swapped().num_blocks(), 3);
  EXPECT_EQ(manager.host().cache().size(), 1);
  EXPECT_EQ(manager.swapped().Sources().size(), 4u);
  EXPECT_EQ(manager.host().cache().num_evicted(), 3);
  EXPECT_EQ(manager.host().CanTake(2), AllocStatus::kLater);
  manager.swapped().Drop(2);
  manager.Check();
}

TEST(HostHitsTest, ASleepKeepsWhatItHasNoCopyOf) {
  Manager manager(1 + 8, 6);
  manager.Compute(1, Tokens(16));
  EXPECT_EQ(manager.Store(2).size(), 2u);
  EXPECT_TRUE(manager.kept().Choose({}, {}).empty());
  EXPECT_EQ(manager.kept().blocks().size(), 2u);
  manager.Check();
  manager.kept().ForgetOthers();
  manager.kept().Release();
  manager.Check();
  EXPECT_EQ(manager.Allocate(3, Tokens(17), "", true, false), 16);
  EXPECT_EQ(manager.cache().TakeHostHits().size(), 2u);
  manager.Free(3);
  // A limit is for both.
  EXPECT_TRUE(manager.kept().Choose({}, {.num_blocks = 1}).empty());
  EXPECT_LE(manager.host().pool().num_used(), 1);
  manager.Check();
}

TEST(HostHitsTest, WhatIsForgottenIsForgottenThereToo) {
  for (const bool all : {false, true}) {
    Manager manager(1 + 4, 10);
    manager.Compute(1, Tokens(12));
    manager.Store(16);
    manager.Compute(2, Tokens(16, 100));
    all ? manager.ResetPrefixCache() : manager.cache().ForgetPrefix(Tokens(12), "");
    EXPECT_EQ(manager.cache().CountCached(3, Tokens(13), ""), 0);
    EXPECT_EQ(manager.host().cache().size(), 0);
    manager.Check();
  }
}

// Contents are modelled: found contents equal computed contents, after any way through the tiers.
TEST(HostHitsTest, RandomLoadsFindTheirOwn) {
  int64_t hits = 0, evictions = 0;
  for (uint32_t seed = 1; seed <= 150; ++seed) {
    std::mt19937 random(seed);
    const auto below = [&](int32_t bound) {
      return static_cast<int32_t>(random() % static_cast<uint32_t>(bound));
    };
    Manager manager(10 + below(20), below(40));
    std::map<int32_t, std::vector<int32_t>> device, host;
    std::map<int64_t, std::vector<int32_t>> live;
    for (int64_t id = 1; id <= 150; ++id) {
      manager.cache().SetReadsHost(below(5) != 0);
      const std::vector<int32_t> tokens = Tokens(1 + below(30), below(6) * 50);
      const int32_t cached = manager.Allocate(id, tokens, "", true, true);
      for (const BlockCopyOp& copy : manager.cache().TakeHostHits()) {
        device[copy.dst] = host.at(copy.src);
        ++hits;
      }
      if (cached >= 0) {
        const std::vector<int32_t> table = manager.Table(id);
        for (size_t i = 0; i < table.size(); ++i) {
          const auto begin = tokens.begin() + static_cast<std::ptrdiff_t>(4 * i);
          const std::vector<int32_t> own(begin, std::min(begin + 4, tokens.end()));
          if (static_cast<int32_t>(4 * (i + 1)) <= cached) {
            ASSERT_EQ(device[table[i]], own) << "seed " << seed;
          }
          device[table[i]] = own;
        }
        manager.Commit(id, tokens, static_cast<int64_t>(tokens.size()));
        live[id] = tokens;
      }
      while (!live.empty() && (cached < 0 || below(2) == 0)) {
        manager.Free(live.begin()->first);
        live.erase(live.begin());
        if (cached < 0) break;
      }
      Copies outs;
      const std::vector<uint64_t> stored = manager.cache().StoreOnHost(1 + below(6), id, &outs);
      for (const BlockCopyOp& copy : outs) host[copy.dst] = device.at(copy.src);
      manager.host_cache().NoteStored(stored, id, below(10) != 0);
      if (below(60) == 0) manager.cache().ForgetPrefix(tokens, "");
      if (below(90) == 0) manager.ResetPrefixCache();
      manager.Check();
      ASSERT_FALSE(HasFailure()) << "seed " << seed;
    }
    evictions += manager.host().cache().num_evicted();
  }
  EXPECT_GT(hits, 2000);
  EXPECT_GT(evictions, 1000);
}

}  // namespace
}  // namespace somnus
