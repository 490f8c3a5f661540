// Sequences whose blocks are in host memory.

#include <gtest/gtest.h>

#include <map>
#include <random>

#include "tests/block_manager/small_blocks.h"

namespace somnus {
namespace {

using Copies = std::vector<BlockCopyOp>;

BlockManagerOptions Options(int32_t num_blocks, int32_t num_host_blocks, double watermark = 0) {
  BlockManagerOptions options;
  options.num_blocks = num_blocks;
  options.block_size = 4;
  options.watermark = watermark;
  options.num_host_blocks = num_host_blocks;
  return options;
}

void AddComputed(BlockManager* manager, int64_t id, const std::vector<int32_t>& tokens) {
  ASSERT_GE(manager->Allocate(id, tokens, "", true, false), 0);
  manager->Commit(id, tokens, static_cast<int64_t>(tokens.size()));
}

AllocStatus SwapIn(BlockManager* manager, int64_t id, const std::vector<int32_t>& tokens, bool use_cache,
                   bool ignore_watermark, Copies* ins, int64_t* adopted) {
  SwappedSequences::Returning returning = {id, tokens, "", use_cache};
  const AllocStatus status = manager->swapped().SwapIn(absl::MakeSpan(&returning, 1), ignore_watermark, ins);
  *adopted = returning.num_adopted;
  return status;
}

std::vector<std::pair<int32_t, int32_t>> Pairs(const Copies& copies) {
  std::vector<std::pair<int32_t, int32_t>> pairs;
  for (const BlockCopyOp& copy : copies) pairs.emplace_back(copy.src, copy.dst);
  return pairs;
}

using List = std::vector<std::pair<int32_t, int32_t>>;

TEST(SwapBlocksTest, ComputedBlocksGoToTheHostAndComeBackWhole) {
  BlockManager manager(Options(10, 3));
  ASSERT_EQ(manager.Allocate(1, Tokens(14), "", false, false), 0);
  Copies outs, ins;
  EXPECT_EQ(manager.host().CanTake(manager.BlocksFor(9)), AllocStatus::kOk);
  manager.swapped().SwapOut({{{1, 9}}}, &outs);
  EXPECT_EQ(Pairs(outs), (List{{1, 0}, {2, 1}, {3, 2}})) << "the fourth has nothing that was computed";
  EXPECT_EQ(manager.pool().num_used(), 0);
  EXPECT_EQ(manager.host().pool().num_used(), 3);
  EXPECT_EQ(manager.swapped().num_blocks(), 3);
  EXPECT_TRUE(manager.CheckIntegrity().ok());
  int64_t adopted = 0;
  ASSERT_EQ(SwapIn(&manager, 1, Tokens(14), false, false, &ins, &adopted), AllocStatus::kOk);
  EXPECT_EQ(Pairs(ins), (List{{0, 1}, {1, 2}, {2, 3}}));
  EXPECT_EQ(manager.Table(1), (std::vector<int32_t>{1, 2, 3, 4}));
  EXPECT_EQ(adopted, 0);
  EXPECT_EQ(manager.host().pool().num_used(), 0);
  EXPECT_TRUE(manager.CheckIntegrity().ok());
}

TEST(SwapBlocksTest, TheHostTierSaysOkLaterOrNever) {
  BlockManager manager(Options(10, 3));
  EXPECT_EQ(manager.host().CanTake(manager.BlocksFor(12)), AllocStatus::kOk);
  EXPECT_EQ(manager.host().CanTake(manager.BlocksFor(13)), AllocStatus::kNever);
  AddComputed(&manager, 1, Tokens(8));
  Copies outs;
  manager.swapped().SwapOut({{{1, 8}}}, &outs);
  EXPECT_EQ(manager.host().CanTake(manager.BlocksFor(4)), AllocStatus::kOk);
  EXPECT_EQ(manager.host().CanTake(manager.BlocksFor(5)), AllocStatus::kLater);
  manager.swapped().Drop(1);
  EXPECT_EQ(manager.host().CanTake(manager.BlocksFor(12)), AllocStatus::kOk);
  EXPECT_TRUE(manager.CheckIntegrity().ok());
  EXPECT_EQ(BlockManager(Options(10, 0)).host().CanTake(1), AllocStatus::kNever);
}

TEST(SwapBlocksTest, ASwapInIsAllOrNothingAndLeavesTheWatermark) {
  BlockManager manager(Options(11, 10, /*watermark=*/0.2));
  AddComputed(&manager, 1, Tokens(12));
  Copies outs, ins;
  manager.swapped().SwapOut({{{1, 12}}}, &outs);
  ASSERT_GE(manager.Allocate(2, Tokens(24, 100), "", false, true), 0);
  int64_t adopted = 0;
  EXPECT_EQ(SwapIn(&manager, 1, Tokens(13), false, false, &ins, &adopted), AllocStatus::kLater);
  EXPECT_TRUE(ins.empty());
  EXPECT_EQ(manager.pool().num_used(), 6);
  EXPECT_EQ(manager.host().pool().num_used(), 3);
  EXPECT_EQ(manager.watermark().num_refusals(), 1) << "four are free, two of which must stay so";
  EXPECT_TRUE(manager.CheckIntegrity().ok());
  EXPECT_EQ(SwapIn(&manager, 1, Tokens(17), false, true, &ins, &adopted), AllocStatus::kLater);
  EXPECT_EQ(manager.watermark().num_refusals(), 1) << "five are not there";
  EXPECT_EQ(SwapIn(&manager, 1, Tokens(41), false, true, &ins, &adopted), AllocStatus::kNever);
  EXPECT_EQ(SwapIn(&manager, 1, Tokens(13), false, true, &ins, &adopted), AllocStatus::kOk);
  EXPECT_TRUE(manager.CheckIntegrity().ok());
}

TEST(SwapBlocksTest, WhatTheDeviceStillHasIsNotCopied) {
  BlockManager manager(Options(20, 10));
  AddComputed(&manager, 1, Tokens(10));
  AddComputed(&manager, 2, Tokens(8));  // shares the first two blocks
  Copies outs, ins;
  manager.swapped().SwapOut({{{1, 10}}}, &outs);
  ASSERT_EQ(outs.size(), 3u);
  const int64_t hashed = manager.cache().num_blocks_hashed();
  int64_t adopted = 0;
  ASSERT_EQ(SwapIn(&manager, 1, Tokens(11), true, false, &ins, &adopted), AllocStatus::kOk);
  EXPECT_EQ(adopted, 8);
  ASSERT_EQ(ins.size(), 1u);
  EXPECT_EQ(ins[0].src, outs[2].dst);
  EXPECT_EQ(ins[0].dst, manager.Table(1)[2]);
  EXPECT_EQ(manager.cache().num_blocks_hashed(), hashed) << "its hashes were kept";
  EXPECT_EQ(manager.host().pool().num_used(), 0);
  EXPECT_TRUE(manager.CheckIntegrity().ok());
}

TEST(SwapBlocksTest, MoreThanWasComputedMayBeFound) {
  BlockManager manager(Options(20, 10));
  ASSERT_EQ(manager.Allocate(1, Tokens(20), "", true, false), 0);
  Copies outs, ins;
  manager.swapped().SwapOut({{{1, 4}}}, &outs);  // in the middle of the prompt
  AddComputed(&manager, 2, Tokens(16));
  int64_t adopted = 0;
  ASSERT_EQ(SwapIn(&manager, 1, Tokens(20), true, false, &ins, &adopted), AllocStatus::kOk);
  EXPECT_EQ(adopted, 16);
  EXPECT_TRUE(ins.empty());
  EXPECT_EQ(manager.host().pool().num_used(), 0);
  EXPECT_TRUE(manager.CheckIntegrity().ok());
}

// Else the next swap would leave null blocks in the middle of the table, and a commit would reach the null
// blocks.
TEST(SwapBlocksTest, ABeginningThatIsFoundAgainIsGivenBackAgain) {
  BlockManagerOptions options = Options(12, 12);
  options.attention_reach = 14;
  BlockManager manager(options);
  const std::vector<int32_t> tokens = Tokens(29);
  AddComputed(&manager, 1, Tokens(28));
  EXPECT_EQ(manager.GiveBackUnseen(1, 28), 3);
  Copies outs, ins;
  manager.swapped().SwapOut({{{1, 28}}}, &outs);
  EXPECT_EQ(outs.size(), 4u);
  ASSERT_EQ(manager.Allocate(2, Tokens(17), "", true, false), 16) << "the beginning has another reader";
  ASSERT_EQ(manager.Allocate(3, Tokens(24, 100), "", false, false), 0) << "the other blocks are evicted";
  manager.Free(3);
  int64_t adopted = 0;
  ASSERT_EQ(SwapIn(&manager, 1, tokens, true, false, &ins, &adopted), AllocStatus::kOk);
  EXPECT_EQ(adopted, 16);
  EXPECT_EQ(ins.size(), 3u);
  EXPECT_EQ(manager.GiveBackUnseen(1, 29), 1) << "three were given back before, and no more are counted";
  outs.clear();
  manager.swapped().SwapOut({{{1, 28}}}, &outs);
  EXPECT_EQ(outs.size(), 3u) << "behind four that were given back";
  ASSERT_EQ(SwapIn(&manager, 1, tokens, false, false, &ins, &adopted), AllocStatus::kOk);
  manager.Commit(1, tokens, 28);
  EXPECT_EQ(manager.pool().num_used(), 5 + 4)
      << "the other reader's, and three that came back, and a new one";
  EXPECT_TRUE(manager.CheckIntegrity().ok());
}

// The cache has room for the blocks that a sequence has at once, and no more.
TEST(SwapBlocksTest, ABeginningThatIsFoundAgainNeedsNoFurtherRoom) {
  BlockManagerOptions options = Options(0, 12);
  options.attention_reach = 14;
  options.max_step_tokens = 4;
  options.num_blocks = 1 + static_cast<int32_t>(WindowBlocks(14, 4, 4));
  BlockManager manager(options);
  const std::vector<int32_t> tokens = Tokens(29);
  AddComputed(&manager, 1, Tokens(24));
  EXPECT_EQ(manager.GiveBackUnseen(1, 24), 2);
  std::vector<int32_t> grown;
  manager.GrowForStep(1, 28, &grown);
  EXPECT_EQ(grown.size(), 1u);
  manager.Commit(1, Tokens(28), 28);
  EXPECT_EQ(manager.GiveBackUnseen(1, 28), 1);
  Copies outs, ins;
  manager.swapped().SwapOut({{{1, 28}}}, &outs);
  EXPECT_EQ(outs.size(), 4u);
  AddComputed(&manager, 2, Tokens(17));
  manager.Free(2);
  const SwappedSequences::Returning returning = {1, tokens, "", /*use_cache=*/true};
  const SwappedSequences::Room room = manager.swapped().RoomFor(absl::MakeConstSpan(&returning, 1), true);
  EXPECT_LE(room.missing, 0);
  EXPECT_LE(room.total, manager.pool().num_free());
  int64_t adopted = 0;
  ASSERT_EQ(SwapIn(&manager, 1, tokens, true, true, &ins, &adopted), AllocStatus::kOk);
  EXPECT_EQ(adopted, 16);
  EXPECT_EQ(ins.size(), 3u);
  EXPECT_EQ(manager.pool().num_used(), 5) << "one that was found, three that came back, and a new one";
  EXPECT_EQ(manager.GiveBackUnseen(1, 29), 1);
  EXPECT_TRUE(manager.CheckIntegrity().ok());
}

TEST(SwapBlocksTest, WhatWasForgottenDoesNotComeBackIntoThePrefixCache) {
  BlockManager manager(Options(20, 10));
  AddComputed(&manager, 1, Tokens(10));
  Copies outs, ins;
  manager.swapped().SwapOut({{{1, 10}}}, &outs);
  manager.ResetPrefixCache();
  int64_t adopted = 0;
  ASSERT_EQ(SwapIn(&manager, 1, Tokens(11), true, false, &ins, &adopted), AllocStatus::kOk);
  EXPECT_EQ(ins.size(), 3u);
  manager.Commit(1, Tokens(16), 16);
  EXPECT_EQ(manager.cache().CountCached(2, Tokens(16), ""), 0);
  manager.swapped().SwapOut({{{1, 10}}}, &outs);  // and not by a second time either
  ASSERT_EQ(SwapIn(&manager, 1, Tokens(11), true, false, &ins, &adopted), AllocStatus::kOk);
  manager.Commit(1, Tokens(16), 16);
  EXPECT_EQ(manager.cache().CountCached(2, Tokens(16), ""), 0);
  EXPECT_TRUE(manager.CheckIntegrity().ok());
}

TEST(SwapBlocksTest, ASleepSharesTheTierWithWhatIsSwappedOut) {
  BlockManager manager(Options(20, 5));
  AddComputed(&manager, 1, Tokens(10));
  AddComputed(&manager, 2, Tokens(12, 100));
  Copies outs, ins;
  manager.swapped().SwapOut({{{1, 10}}}, &outs);
  EXPECT_EQ(manager.kept().Choose({{{2, 12}}}, {}), (std::vector<int64_t>{2})) << "two blocks are left";
  EXPECT_TRUE(manager.CheckIntegrity().ok());
  manager.kept().Release();
  EXPECT_EQ(manager.kept().Choose({{{2, 8}}}, {.num_blocks = 4}), (std::vector<int64_t>{2}))
      << "the limit is of the host's memory";
  manager.kept().Release();
  EXPECT_TRUE(manager.kept().Choose({{{2, 8}}}, {.num_blocks = 5}).empty());
  manager.kept().ForgetOthers();
  EXPECT_TRUE(manager.CheckIntegrity().ok());
  manager.kept().Release();
  int64_t adopted = 0;
  ASSERT_EQ(SwapIn(&manager, 1, Tokens(11), true, false, &ins, &adopted), AllocStatus::kOk);
  EXPECT_EQ(ins.size(), 3u);
  EXPECT_EQ(manager.host().pool().num_used(), 0);
}

// The contents of blocks are modelled: each sequence finds the right contents after any number of swaps.
class RandomSwaps {
 public:
  explicit RandomSwaps(uint32_t seed) : random_(seed), manager_(Options(8 + Below(30), Below(20))) {}

  void Step(int64_t step) {
    if (Below(3) == 0) Begin(step);
    if (live_.empty()) return;
    auto it = live_.begin();
    std::advance(it, Below(static_cast<int32_t>(live_.size())));
    Live& sequence = it->second;
    if (Below(5) == 0) {
      sequence.is_swapped ? manager_.swapped().Drop(it->first) : manager_.Free(it->first);
      manager_.cache().Withdraw(it->first);
      live_.erase(it);
    } else if (sequence.is_swapped) {
      SwapInOne(it->first, &sequence);
    } else if (manager_.host().CanTake(manager_.BlocksFor(Size(sequence))) == AllocStatus::kOk) {
      Copies copies;
      manager_.swapped().SwapOut({{{it->first, Size(sequence)}}}, &copies);
      for (const BlockCopyOp& copy : copies) host_[copy.dst] = device_.at(copy.src);
      sequence.is_swapped = true;
      ++num_swaps_;
    }
    const absl::Status status = manager_.CheckIntegrity();
    ASSERT_TRUE(status.ok()) << status;
  }
  int num_swaps() const { return num_swaps_; }

 private:
  struct Live {
    std::vector<int32_t> tokens;
    bool is_swapped = false;
  };

  int32_t Below(int32_t bound) { return static_cast<int32_t>(random_() % static_cast<uint32_t>(bound)); }
  static int64_t Size(const Live& sequence) { return static_cast<int64_t>(sequence.tokens.size()); }

  void Begin(int64_t id) {
    const Live sequence = {Tokens(1 + Below(30), Below(3) * 50)};
    if (manager_.Allocate(id, sequence.tokens, "", Below(2) == 0, true) < 0) return;
    live_[id] = sequence;
    Fill(id);
  }
  void Fill(int64_t id) {
    const std::vector<int32_t>& tokens = live_[id].tokens;
    const std::vector<int32_t> table = manager_.Table(id);
    for (size_t i = 0; i < table.size(); ++i)
      device_[table[i]].assign(tokens.begin(), tokens.begin() + std::min(tokens.size(), 4 * (i + 1)));
    manager_.Commit(id, tokens, static_cast<int64_t>(tokens.size()));
  }
  void SwapInOne(int64_t id, Live* sequence) {
    const int32_t used = manager_.pool().num_used(), on_host = manager_.host().pool().num_used();
    const int64_t size = Size(*sequence);
    sequence->tokens.push_back(7);  // sampled while the sequence was swapped out
    Copies copies;
    int64_t adopted = 0;
    if (SwapIn(&manager_, id, sequence->tokens, Below(2) == 0, true, &copies, &adopted) != AllocStatus::kOk) {
      sequence->tokens.pop_back();
      ASSERT_EQ(manager_.pool().num_used(), used);
      ASSERT_EQ(manager_.host().pool().num_used(), on_host);
      return;
    }
    for (const BlockCopyOp& copy : copies) device_[copy.dst] = host_.at(copy.src);
    const std::vector<int32_t> table = manager_.Table(id);
    for (int64_t i = 0; i < manager_.BlocksFor(size); ++i) {
      const auto begin = sequence->tokens.begin();
      const std::vector<int32_t>& found = device_[table[i]];
      const int64_t expected = std::min<int64_t>(size, 4 * (i + 1));
      ASSERT_GE(static_cast<int64_t>(found.size()), expected);
      ASSERT_TRUE(std::equal(begin, begin + expected, found.begin()));
    }
    sequence->is_swapped = false;
    Fill(id);
  }

  std::mt19937 random_;
  BlockManager manager_;
  std::map<int32_t, std::vector<int32_t>> device_, host_;  // leading tokens, by block
  std::map<int64_t, Live> live_;
  int num_swaps_ = 0;
};

TEST(SwapBlocksTest, RandomSwapsKeepEveryContent) {
  int num_swaps = 0;
  for (uint32_t seed = 1; seed <= 200; ++seed) {
    RandomSwaps swaps(seed);
    for (int64_t step = 1; step < 200; ++step) {
      swaps.Step(step);
      ASSERT_FALSE(HasFatalFailure()) << "seed " << seed << " step " << step;
    }
    num_swaps += swaps.num_swaps();
  }
  EXPECT_GT(num_swaps, 2000);
}

}  // namespace
}  // namespace somnus
