// Events of the prefix cache: how they are put together, and that they say exactly what is cached, whatever
// happens.

#include "coordinator/block_manager/block_events.h"

#include <gtest/gtest.h>

#include <random>

#include "coordinator/block_manager/block_manager.h"
#include "tests/block_manager/replayed_cache.h"

namespace somnus {
namespace {

using Kind = BlockEvent::Kind;

std::vector<int32_t> Tokens(int32_t count, int32_t first = 1) {
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  for (int32_t i = 0; i < count; ++i) tokens[static_cast<size_t>(i)] = first + i;
  return tokens;
}

BlockManagerOptions Recording(int32_t num_blocks, int32_t block_size, int32_t num_host_blocks = 0) {
  BlockManagerOptions options;
  options.num_blocks = num_blocks;
  options.block_size = block_size;
  options.watermark = 0;
  options.num_host_blocks = num_host_blocks;
  options.records_events = true;
  return options;
}

TEST(BlockEventsTest, AChainIsOneEventAndRemovalsAreOne) {
  BlockEventRecorder recorder;
  const std::vector<int32_t> a = {1, 2}, b = {3, 4}, c = {5, 6};
  recorder.NoteStored({.content_id = 1, .tokens = a, .salt = "s"});
  recorder.NoteStored({.content_id = 2, .parent_content_id = 1, .tokens = b});
  recorder.NoteStored({.content_id = 3, .parent_content_id = 1, .tokens = c});
  recorder.NoteRemoved(2);
  recorder.NoteRemoved(3);
  recorder.NoteRemoved(1, CacheMedium::kHost);
  const std::vector<BlockEvent> events = recorder.Take();
  ASSERT_EQ(events.size(), 4u);
  EXPECT_EQ(events[0],
            (BlockEvent{.kind = Kind::kStored, .content_ids = {1, 2}, .tokens = {1, 2, 3, 4}, .salt = "s"}));
  EXPECT_EQ(
      events[1],
      (BlockEvent{.kind = Kind::kStored, .content_ids = {3}, .parent_content_id = 1, .tokens = {5, 6}}));
  EXPECT_EQ(events[2], (BlockEvent{.kind = Kind::kRemoved, .content_ids = {2, 3}}));
  EXPECT_EQ(events[3],
            (BlockEvent{.kind = Kind::kRemoved, .medium = CacheMedium::kHost, .content_ids = {1}}));
  EXPECT_TRUE(recorder.Take().empty());
}

TEST(BlockEventsTest, WhatIsClearedNeedsNoEventsBefore) {
  BlockEventRecorder recorder;
  const std::vector<int32_t> a = {1, 2};
  recorder.NoteStored({.content_id = 1, .tokens = a});
  recorder.NoteCleared();
  EXPECT_EQ(recorder.Take(), std::vector<BlockEvent>{BlockEvent{}});
}

TEST(BlockEventsTest, NothingIsRecordedUnlessSomebodyWantsIt) {
  BlockManagerOptions options = Recording(8, 4);
  options.records_events = false;
  BlockManager manager(options);
  const std::vector<int32_t> tokens = Tokens(8);
  manager.Allocate(1, tokens, "", true, false);
  manager.Commit(1, tokens, 8);
  EXPECT_TRUE(manager.TakeEvents().empty());
  EXPECT_EQ(manager.cache_counts().stored, 2);
}

// As vLLM's test_kv_cache_events: stored once, removed when it is evicted, cleared by a reset.
TEST(BlockEventsTest, BlocksAreStoredEvictedAndCleared) {
  BlockManager manager(Recording(/*num_blocks=*/5, 4));  // 4 beside the null block
  EXPECT_EQ(manager.TakeEvents(), std::vector<BlockEvent>{BlockEvent{}}) << "it begins empty";
  const std::vector<int32_t> tokens = Tokens(10), others = Tokens(16, 100);
  ASSERT_EQ(manager.Allocate(1, tokens, "", true, false), 0);
  manager.Commit(1, tokens, 10);
  std::vector<BlockEvent> events = manager.TakeEvents();
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].content_ids.size(), 2u) << "full blocks alone";
  EXPECT_EQ(events[0].parent_content_id, 0u);
  EXPECT_EQ(events[0].tokens, Tokens(8));
  const std::vector<uint64_t> first = events[0].content_ids;
  manager.Free(1);
  ASSERT_EQ(manager.Allocate(2, tokens, "", true, false), 8);
  manager.Commit(2, tokens, 10);
  manager.Free(2);
  EXPECT_TRUE(manager.TakeEvents().empty()) << "a hit changes nothing";
  ASSERT_EQ(manager.Allocate(3, others, "", true, false), 0);
  events = manager.TakeEvents();
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].kind, Kind::kRemoved);
  EXPECT_EQ(events[0].content_ids, (std::vector<uint64_t>{first[1], first[0]})) << "tails go first";
  EXPECT_EQ(manager.cache_counts().num_lost(CacheLoss::kEvicted), 2);
  manager.Commit(3, others, 16);
  manager.TakeEvents();
  manager.ResetPrefixCache();
  EXPECT_EQ(manager.TakeEvents(), std::vector<BlockEvent>{BlockEvent{}});
  EXPECT_EQ(manager.cache_counts().num_lost(CacheLoss::kReset), 4);
  manager.ResetPrefixCache();
  EXPECT_TRUE(manager.TakeEvents().empty()) << "there was nothing left to clear";
}

// A manager under a random load, whose events are replayed.
class RandomCache {
 public:
  explicit RandomCache(uint32_t seed)
      : random_(seed),
        options_(Recording(3 + Below(40), 1 + Below(5), Below(10))),
        manager_(options_),
        replayed_(options_.block_size) {}

  void Step() {
    switch (Below(12)) {
      case 0:
      case 1:
      case 2:
        return Allocate();
      case 3:
      case 4:
        return Grow();
      case 5:
      case 6:
      case 7:
        return Commit();
      case 8:
      case 9:
        return Free();
      case 10:
        return Fork();
      default:
        return LoseSome();
    }
  }
  // `takes`: the events so far are taken, which is done now and then.
  void Check(bool takes) {
    const absl::Status integrity = manager_.CheckIntegrity();
    ASSERT_TRUE(integrity.ok()) << integrity;
    if (!takes) return;
    replayed_.Apply(manager_.TakeEvents());
    replayed_.ExpectIs(manager_.pool(), options_.num_blocks);
  }
  bool TakesNow() { return Below(4) == 0; }
  int64_t num_events() const { return replayed_.num_events(); }
  const CacheBlockCounts& counts() const { return manager_.cache_counts(); }

 private:
  int32_t Below(uint32_t bound) { return static_cast<int32_t>(random_() % bound); }
  std::map<int64_t, std::vector<int32_t>>::iterator Any() {
    auto it = live_.begin();
    std::advance(it, Below(static_cast<uint32_t>(live_.size())));
    return it;
  }
  void Allocate() {
    // There are few different prompts, so that sequences share prefixes.
    const std::vector<int32_t> tokens = Tokens(1 + Below(30), Below(2));
    const bool fits =
        manager_.Allocate(next_id_, tokens, Below(2) ? "" : "s", Below(4) != 0, live_.empty()) >= 0;
    if (fits) live_[next_id_++] = tokens;
  }
  void Grow() {
    if (live_.empty()) return;
    auto& [id, tokens] = *Any();
    std::vector<int32_t> ids;
    tokens.push_back(Below(3));
    if (!manager_.Grow(id, static_cast<int64_t>(tokens.size()), &ids)) tokens.pop_back();
  }
  void Commit() {
    if (live_.empty()) return;
    auto& [id, tokens] = *Any();
    manager_.Commit(id, tokens, Below(static_cast<uint32_t>(tokens.size()) + 1));
  }
  void Free() {
    if (live_.empty()) return;
    const auto it = Any();
    manager_.Free(it->first);
    live_.erase(it);
  }
  void Fork() {
    if (live_.empty()) return;
    const auto it = Any();
    const std::vector<int32_t> tokens = it->second;
    manager_.Fork(it->first, next_id_);
    live_[next_id_++] = tokens;
  }
  void LoseSome() {
    switch (Below(12)) {
      case 0:
        return manager_.ResetPrefixCache(Below(2) ? CacheLoss::kReset : CacheLoss::kFailure);
      case 1:
        return manager_.SetLimit(1 + Below(static_cast<uint32_t>(options_.num_blocks)));
      case 2:
        return manager_.SetLimit(options_.num_blocks);
      case 3:
        return Sleep();
      case 4:
      case 5:
        if (!live_.empty()) manager_.ForgetPrefix(Any()->second, Below(2) ? "" : "s");
        return;
      default:
        return;
    }
  }
  // No sequence runs through it.
  void Sleep() {
    while (!live_.empty()) Free();
    manager_.ChooseKept({});
    manager_.ForgetUnkept();
    manager_.ReleaseKept();
  }

  std::mt19937 random_;
  const BlockManagerOptions options_;
  BlockManager manager_;
  ReplayedCache replayed_;
  std::map<int64_t, std::vector<int32_t>> live_;
  int64_t next_id_ = 1;
};

TEST(BlockEventsTest, ReplayedEventsAreWhatIsCachedAfterRandomLoads) {
  int64_t num_events = 0;
  CacheBlockCounts counts;
  for (uint32_t seed = 1; seed <= 25; ++seed) {
    RandomCache cache(seed);
    for (int step = 0; step < 1200 && !::testing::Test::HasFailure(); ++step) {
      cache.Step();
      cache.Check(cache.TakesNow());
    }
    cache.Check(/*takes=*/true);
    ASSERT_FALSE(::testing::Test::HasFailure()) << "seed " << seed;
    num_events += cache.num_events();
    counts.Add(cache.counts());
  }
  EXPECT_GT(num_events, 1000);
  for (const CacheLoss cause :
       {CacheLoss::kEvicted, CacheLoss::kOrphaned, CacheLoss::kReset, CacheLoss::kSleep, CacheLoss::kShrunk,
        CacheLoss::kFailure, CacheLoss::kBadContents})
    EXPECT_GT(counts.num_lost(cause), 0) << kCacheLosses[static_cast<size_t>(cause)];
}

}  // namespace
}  // namespace somnus
