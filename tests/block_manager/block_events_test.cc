// Events of the prefix cache: how events are put together, and that the events say exactly which blocks are
// cached, always.

#include "coordinator/block_manager/block_events.h"

#include <gtest/gtest.h>

#include <deque>
#include <map>
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
  EXPECT_TRUE(manager.cache().TakeEvents().empty());
  EXPECT_EQ(manager.pool().counts().stored, 2);
}

// As vLLM's test_kv_cache_events: stored once, removed at the eviction, cleared by a reset.
TEST(BlockEventsTest, BlocksAreStoredEvictedAndCleared) {
  BlockManager manager(Recording(/*num_blocks=*/5, 4));  // 4 beside the null block
  EXPECT_EQ(manager.cache().TakeEvents(), std::vector<BlockEvent>{BlockEvent{}}) << "it begins empty";
  const std::vector<int32_t> tokens = Tokens(10), others = Tokens(16, 100);
  ASSERT_EQ(manager.Allocate(1, tokens, "", true, false), 0);
  manager.Commit(1, tokens, 10);
  std::vector<BlockEvent> events = manager.cache().TakeEvents();
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].content_ids.size(), 2u) << "full blocks alone";
  EXPECT_EQ(events[0].parent_content_id, 0u);
  EXPECT_EQ(events[0].tokens, Tokens(8));
  const std::vector<uint64_t> first = events[0].content_ids;
  manager.Free(1);
  ASSERT_EQ(manager.Allocate(2, tokens, "", true, false), 8);
  manager.Commit(2, tokens, 10);
  manager.Free(2);
  EXPECT_TRUE(manager.cache().TakeEvents().empty()) << "a hit changes nothing";
  ASSERT_EQ(manager.Allocate(3, others, "", true, false), 0);
  events = manager.cache().TakeEvents();
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].kind, Kind::kRemoved);
  EXPECT_EQ(events[0].content_ids, (std::vector<uint64_t>{first[1], first[0]})) << "tails go first";
  EXPECT_EQ(manager.pool().counts().num_lost(CacheLoss::kEvicted), 2);
  manager.Commit(3, others, 16);
  manager.cache().TakeEvents();
  manager.ResetPrefixCache();
  EXPECT_EQ(manager.cache().TakeEvents(), std::vector<BlockEvent>{BlockEvent{}});
  EXPECT_EQ(manager.pool().counts().num_lost(CacheLoss::kReset), 4);
  manager.ResetPrefixCache();
  EXPECT_TRUE(manager.cache().TakeEvents().empty()) << "there was nothing left to clear";
}

// Evicted from the device, found in the host tier, back on the device, and evicted there: a single content,
// with events of both media.
TEST(BlockEventsTest, TheHostTierHasEventsOfItsOwn) {
  BlockManager manager(Recording(/*num_blocks=*/5, 4, /*num_host_blocks=*/2));
  manager.cache().SetReadsHost(true);
  ReplayedCache replayed(4);
  const auto sizes = [&] {
    replayed.Apply(manager.cache().TakeEvents());
    replayed.ExpectIs(manager, 5);
    return std::pair(replayed.contents().size(), replayed.contents(CacheMedium::kHost).size());
  };
  const auto compute = [&](int64_t id, const std::vector<int32_t>& tokens) {
    const int32_t cached = manager.Allocate(id, tokens, "s", true, false);
    manager.Commit(id, tokens, static_cast<int64_t>(tokens.size()));
    manager.Free(id);
    return cached;
  };
  compute(1, Tokens(8));
  EXPECT_EQ(sizes(), std::pair(size_t{2}, size_t{0}));
  std::vector<BlockCopyOp> copies;
  const std::vector<uint64_t> stored = manager.cache().StoreOnHost(4, /*step=*/1, &copies);
  ASSERT_EQ(stored.size(), 2u);
  EXPECT_TRUE(manager.cache().TakeEvents().empty()) << "no rank has said yet that it is there";
  manager.host_cache().NoteStored(stored, 1, /*is_ready=*/true);
  std::vector<BlockEvent> events = manager.cache().TakeEvents();
  EXPECT_EQ(events, (std::vector<BlockEvent>{{.kind = Kind::kStored,
                                              .medium = CacheMedium::kHost,
                                              .content_ids = {stored[1], stored[0]},
                                              .tokens = Tokens(8),
                                              .salt = "s"}}))
      << "a chain, in its order";
  replayed.Apply(events);
  EXPECT_EQ(sizes(), std::pair(size_t{2}, size_t{2}));
  compute(2, Tokens(16, 100));
  EXPECT_EQ(sizes(), std::pair(size_t{4}, size_t{2})) << "the device has lost it";
  EXPECT_EQ(compute(3, Tokens(9)), 8);
  EXPECT_EQ(manager.cache().TakeHostHits().size(), 2u);
  EXPECT_EQ(sizes(), std::pair(size_t{3}, size_t{2}));
  EXPECT_TRUE(replayed.contents().contains(stored[0])) << "it has the id that it had";
  ASSERT_GE(manager.Allocate(4, Tokens(8, 200), "", true, false), 0);
  manager.swapped().SwapOut({{{4, 8}}}, &copies);
  EXPECT_EQ(sizes().second, 0u)
      << "the host tier has room for two, and blocks of one sequence are not cached";
  manager.swapped().Drop(4);
}

TEST(BlockEventsTest, WhatNoRankHasWasNeverStored) {
  BlockManager manager(Recording(/*num_blocks=*/5, 4, /*num_host_blocks=*/4));
  manager.Allocate(1, Tokens(8), "", true, false);
  manager.Commit(1, Tokens(8), 8);
  manager.Free(1);
  manager.cache().TakeEvents();
  std::vector<BlockCopyOp> copies;
  manager.host_cache().NoteStored(manager.cache().StoreOnHost(4, 1, &copies), 1, /*is_ready=*/false);
  manager.cache().StoreOnHost(4, 2, &copies);
  manager.host_cache().Clear();
  EXPECT_TRUE(manager.cache().TakeEvents().empty());
}

TEST(BlockEventsTest, AResetClearsBothMediaAndASleepOnlyWhatItLoses) {
  for (const bool resets : {false, true}) {
    BlockManager manager(Recording(/*num_blocks=*/5, 4, /*num_host_blocks=*/4));
    manager.Allocate(1, Tokens(8), "", true, false);
    manager.Commit(1, Tokens(8), 8);
    manager.Free(1);
    std::vector<BlockCopyOp> copies;
    manager.host_cache().NoteStored(manager.cache().StoreOnHost(4, 1, &copies), 1, /*is_ready=*/true);
    manager.cache().TakeEvents();
    if (resets) {
      manager.ResetPrefixCache();
      EXPECT_EQ(manager.cache().TakeEvents(), std::vector<BlockEvent>{BlockEvent{}});
      continue;
    }
    manager.kept().ForgetOthers();
    const std::vector<BlockEvent> events = manager.cache().TakeEvents();
    ASSERT_EQ(events.size(), 1u);
    EXPECT_EQ(events[0].kind, Kind::kRemoved) << "the host tier has not lost it";
    EXPECT_EQ(events[0].medium, CacheMedium::kDevice);
    EXPECT_EQ(events[0].content_ids.size(), 2u);
    manager.ResetPrefixCache();
    EXPECT_EQ(manager.cache().TakeEvents(), std::vector<BlockEvent>{BlockEvent{}})
        << "also where the host tier alone has something";
  }
}

// A manager under a random load, whose events are replayed.
class RandomCache {
 public:
  explicit RandomCache(uint32_t seed)
      : random_(seed),
        options_(Recording(3 + Below(40), 1 + Below(5), Below(3) * 15)),
        manager_(options_),
        replayed_(options_.block_size) {}

  void Step() {
    switch (Below(19)) {
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
      case 11:
      case 12:
        return Store();
      case 13:
      case 14:
        return NoteStored();
      case 15:
        return SwapOut();
      case 16:
        return SwapIn();
      case 17:
        return DropSwapped();
      default:
        return LoseSome();
    }
  }
  // `takes`: the events so far are taken, which is done now and then.
  void Check(bool takes) {
    const absl::Status integrity = manager_.CheckIntegrity();
    ASSERT_TRUE(integrity.ok()) << integrity;
    if (!takes) return;
    replayed_.Apply(manager_.cache().TakeEvents());
    replayed_.ExpectIs(manager_, options_.num_blocks);
    most_on_host_ = std::max(most_on_host_, replayed_.contents(CacheMedium::kHost).size());
  }
  bool TakesNow() { return Below(4) == 0; }
  int64_t num_events() const { return replayed_.num_events(); }
  int64_t num_host_hits() const { return num_host_hits_; }
  size_t most_on_host() const { return most_on_host_; }
  const BlockManager& manager() const { return manager_; }
  const CacheBlockCounts& counts() const { return manager_.pool().counts(); }

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
    manager_.cache().SetReadsHost(Below(4) != 0);
    const bool fits =
        manager_.Allocate(next_id_, tokens, Below(2) ? "" : "s", Below(4) != 0, live_.empty()) >= 0;
    if (fits) live_[next_id_++] = tokens;
    num_host_hits_ += static_cast<int64_t>(manager_.cache().TakeHostHits().size());
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
    manager_.sharing().Fork(it->first, next_id_);
    live_[next_id_++] = tokens;
  }
  // A step copies cached blocks to the host; later all ranks have the copies, or one rank has not.
  void Store() {
    std::vector<BlockCopyOp> copies;
    ++step_;
    stored_.emplace_back(step_, manager_.cache().StoreOnHost(1 + Below(6), step_, &copies));
  }
  void NoteStored() {
    for (; !stored_.empty(); stored_.pop_front())
      manager_.host_cache().NoteStored(stored_.front().second, stored_.front().first,
                                       /*is_ready=*/Below(6) != 0);
  }
  void SwapOut() {
    if (live_.empty()) return;
    const auto it = Any();
    const auto num_tokens = static_cast<int64_t>(it->second.size());
    if (manager_.host().CanTake(manager_.BlocksFor(num_tokens)) != AllocStatus::kOk) return;
    std::vector<BlockCopyOp> copies;
    manager_.swapped().SwapOut({{{it->first, num_tokens}}}, &copies);
    swapped_.insert(live_.extract(it));
  }
  void SwapIn() {
    if (swapped_.empty()) return;
    const auto first = swapped_.begin();
    SwappedSequences::Returning one = {first->first, first->second, "", Below(2) == 0};
    std::vector<BlockCopyOp> copies;
    if (manager_.swapped().SwapIn(absl::MakeSpan(&one, 1), live_.empty(), &copies) == AllocStatus::kOk)
      live_.insert(swapped_.extract(first));
  }
  // A client leaves.
  void DropSwapped() {
    if (swapped_.empty()) return;
    const int64_t id = swapped_.extract(swapped_.begin()).key();
    manager_.swapped().Drop(id);
    manager_.cache().Withdraw(id);
  }
  void LoseHost() {
    while (!swapped_.empty()) DropSwapped();
    manager_.host_cache().Clear();
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
        if (!live_.empty()) manager_.cache().ForgetPrefix(Any()->second, Below(2) ? "" : "s");
        return;
      default:
        return;
    }
  }
  // No sequence runs through a sleep.
  void Sleep() {
    while (!live_.empty()) Free();
    if (Below(2) == 0) LoseHost();
    manager_.kept().Choose({});
    manager_.kept().ForgetOthers();
    manager_.kept().Release();
  }

  std::mt19937 random_;
  const BlockManagerOptions options_;
  BlockManager manager_;
  ReplayedCache replayed_;
  std::map<int64_t, std::vector<int32_t>> live_, swapped_;
  std::deque<std::pair<int64_t, std::vector<uint64_t>>> stored_;  // by step
  int64_t next_id_ = 1, step_ = 0;
  int64_t num_host_hits_ = 0;
  size_t most_on_host_ = 0;
};

TEST(BlockEventsTest, ReplayedEventsAreWhatIsCachedAfterRandomLoads) {
  int64_t num_events = 0, num_host_hits = 0, num_host_evictions = 0;
  size_t most_on_host = 0;
  CacheBlockCounts counts;
  for (uint32_t seed = 1; seed <= 25; ++seed) {
    RandomCache cache(seed);
    for (int step = 0; step < 5000 && !::testing::Test::HasFailure(); ++step) {
      cache.Step();
      cache.Check(cache.TakesNow());
    }
    cache.Check(/*takes=*/true);
    ASSERT_FALSE(::testing::Test::HasFailure()) << "seed " << seed;
    num_events += cache.num_events();
    num_host_hits += cache.num_host_hits();
    num_host_evictions += cache.manager().host().cache().num_evicted();
    most_on_host = std::max(most_on_host, cache.most_on_host());
    counts.Add(cache.counts());
  }
  EXPECT_GT(num_events, 1000);
  EXPECT_GT(num_host_hits, 100);
  EXPECT_GT(num_host_evictions, 100);
  EXPECT_GE(most_on_host, 5u);
  for (const CacheLoss cause :
       {CacheLoss::kEvicted, CacheLoss::kOrphaned, CacheLoss::kReset, CacheLoss::kSleep, CacheLoss::kShrunk,
        CacheLoss::kFailure, CacheLoss::kBadContents})
    EXPECT_GT(counts.num_lost(cause), 0) << kCacheLosses[static_cast<size_t>(cause)];
}

}  // namespace
}  // namespace somnus
