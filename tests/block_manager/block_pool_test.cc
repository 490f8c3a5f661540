#include "coordinator/block_manager/block_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <list>
#include <map>
#include <random>
#include <set>

namespace somnus {
namespace {

BlockContent Content(const std::vector<int32_t>& tokens, absl::string_view salt = "", uint64_t parent = 0) {
  return {parent, HashBlock(parent, tokens, salt), tokens, salt};
}

TEST(BlockPoolTest, GivesBlocksInOrderAndNeverBlockZero) {
  BlockPool pool(5, 2);
  for (int32_t id = 1; id < 5; ++id) EXPECT_EQ(pool.Allocate()->id, id);
  EXPECT_EQ(pool.num_free(), 0);
  EXPECT_TRUE(pool.CheckIntegrity().ok());
}

TEST(BlockPoolTest, UnknownBlocksAreReusedBeforeCachedOnesAndThoseInLruOrder) {
  BlockPool pool(5, 1);
  std::vector<KvBlock*> blocks;
  for (int i = 0; i < 4; ++i) blocks.push_back(pool.Allocate());
  const std::vector<int32_t> a = {10}, b = {11};
  pool.Remember(blocks[0], Content(a));
  pool.Remember(blocks[1], Content(b));
  pool.Release(blocks[1]);  // the older of the cached blocks
  pool.Release(blocks[0]);
  pool.Release(blocks[2]);
  pool.Release(blocks[3]);
  EXPECT_EQ(pool.num_cached(), 2);
  EXPECT_EQ(pool.Allocate(), blocks[2]);  // the lowest without known contents
  EXPECT_EQ(pool.Allocate(), blocks[3]);
  EXPECT_EQ(pool.Allocate(), blocks[1]);
  EXPECT_EQ(pool.Find(Content(b)), nullptr);
  EXPECT_EQ(pool.Find(Content(a)), blocks[0]);
  EXPECT_TRUE(pool.CheckIntegrity().ok());
}

TEST(BlockPoolTest, AHitNeedsTheSameTokensParentAndSaltWhateverTheHash) {
  BlockPool pool(4, 2);
  KvBlock* block = pool.Allocate();
  const std::vector<int32_t> tokens = {1, 2}, others = {1, 3};
  BlockContent content = Content(tokens, "tenant");
  pool.Remember(block, content);
  EXPECT_EQ(pool.Find(content), block);
  BlockContent colliding = content;
  colliding.tokens = others;  // the same hash
  EXPECT_EQ(pool.Find(colliding), nullptr);
  colliding = content;
  colliding.salt = "other";
  EXPECT_EQ(pool.Find(colliding), nullptr);
  colliding = content;
  colliding.parent_content_id = 7;
  EXPECT_EQ(pool.Find(colliding), nullptr);
  // The newer of two contents with one hash is found.
  KvBlock* second = pool.Allocate();
  colliding = content;
  colliding.tokens = others;
  pool.Remember(second, colliding);
  EXPECT_EQ(pool.Find(colliding), second);
  EXPECT_EQ(pool.Find(content), nullptr);
  EXPECT_EQ(pool.counts().num_lost(CacheLoss::kOrphaned), 1);
  EXPECT_EQ(pool.counts().num_cached(), 1);
  EXPECT_TRUE(pool.CheckIntegrity().ok());
}

// A sequence computes the contents of a cached block again: the sequence's block would be unknown, and the
// cached block is the next to be given out.
TEST(BlockPoolTest, ACachedBlockHandsItsPlaceToTheBlockInUse) {
  BlockPool pool(4, 1);
  const std::vector<int32_t> a = {10}, b = {11};
  KvBlock* const old = pool.Allocate();
  pool.Remember(old, Content(a));
  const uint64_t content_id = old->content_id;
  pool.Release(old);
  KvBlock *const newer = pool.Allocate(), *const third = pool.Allocate();
  ASSERT_NE(newer, old);
  pool.Remember(newer, Content(a));
  EXPECT_EQ(pool.Find(Content(a)), newer);
  EXPECT_EQ(newer->content_id, content_id);
  EXPECT_EQ(pool.num_cached(), 0);
  EXPECT_TRUE(pool.CheckIntegrity().ok()) << pool.CheckIntegrity();
  EXPECT_EQ(pool.Allocate(), old);
  EXPECT_EQ(pool.Find(Content(a)), newer);
  EXPECT_EQ(pool.counts().stored, 1);
  EXPECT_EQ(pool.counts().num_lost(CacheLoss::kEvicted), 0);

  pool.Remember(third, Content(a));
  EXPECT_EQ(pool.Find(Content(a)), newer) << "a used block stays";
  pool.Remember(third, Content(b));
  EXPECT_EQ(pool.Find(Content(b)), third);
  EXPECT_TRUE(pool.CheckIntegrity().ok()) << pool.CheckIntegrity();
}

TEST(BlockPoolTest, ForgetAllLeavesUsedBlocksUsed) {
  BlockPool pool(4, 1);
  KvBlock* used = pool.Allocate();
  KvBlock* freed = pool.Allocate();
  const std::vector<int32_t> a = {1}, b = {2};
  pool.Remember(used, Content(a));
  pool.Remember(freed, Content(b));
  pool.Release(freed);
  pool.ForgetAll(CacheLoss::kReset);
  EXPECT_EQ(pool.Find(Content(a)), nullptr);
  EXPECT_EQ(pool.num_cached(), 0);
  EXPECT_EQ(pool.num_used(), 1);
  EXPECT_EQ(pool.num_free(), 2);
  EXPECT_EQ(pool.counts().stored, 2);
  EXPECT_EQ(pool.counts().num_lost(CacheLoss::kReset), 2) << "used or not";
  EXPECT_EQ(pool.counts().num_cached(), 0);
  EXPECT_TRUE(pool.CheckIntegrity().ok());
}

TEST(BlockPoolTest, ALimitTakesBlocksOutOfUse) {
  BlockPool pool(7, 1);
  std::vector<KvBlock*> blocks;
  for (int i = 0; i < 6; ++i) blocks.push_back(pool.Allocate());  // ids 1 to 6
  const std::vector<int32_t> a = {1}, b = {2}, c = {3};
  pool.Remember(blocks[0], Content(a));
  pool.Remember(blocks[3], Content(b));
  pool.Remember(blocks[5], Content(c));
  for (const int i : {0, 1, 3}) pool.Release(blocks[i]);
  pool.SetLimit(4);
  EXPECT_NE(pool.Find(Content(a)), nullptr);
  EXPECT_EQ(pool.Find(Content(b)), nullptr);  // of block 4, cached
  EXPECT_EQ(pool.Find(Content(c)), nullptr);  // of block 6, used
  EXPECT_EQ(pool.num_free(), 2);
  EXPECT_EQ(pool.num_used(), 3);  // 3, 5 and 6
  EXPECT_EQ(pool.num_total(), 5);
  EXPECT_EQ(pool.EndOfUsed(), 7);
  EXPECT_TRUE(pool.CheckIntegrity().ok()) << pool.CheckIntegrity();
  pool.Remember(blocks[5], Content(c));  // nobody should use the block any longer
  EXPECT_EQ(pool.Find(Content(c)), nullptr);
  pool.Release(blocks[5]);
  EXPECT_EQ(pool.num_free(), 2);
  EXPECT_EQ(pool.EndOfUsed(), 6);
  pool.SetLimit(7);
  EXPECT_EQ(pool.num_free(), 4);
  EXPECT_EQ(pool.num_total(), 6);
  EXPECT_TRUE(pool.CheckIntegrity().ok()) << pool.CheckIntegrity();
  pool.Release(blocks[4]);
  EXPECT_EQ(pool.num_free(), 5);
}

TEST(BlockPoolTest, UsedBlocksGatherAtTheBeginning) {
  BlockPool pool(10000, 1);
  std::vector<KvBlock*> blocks;
  for (int i = 0; i < 9999; ++i) blocks.push_back(pool.Allocate());
  std::mt19937 random(1);
  std::shuffle(blocks.begin(), blocks.end(), random);
  while (blocks.size() > 100) {
    pool.Release(blocks.back());
    blocks.pop_back();
  }
  for (int round = 0; round < 300; ++round) {
    pool.Release(blocks.front());
    blocks.erase(blocks.begin());
    blocks.push_back(pool.Allocate());
  }
  EXPECT_LE(pool.EndOfUsed(), 300);
}

// The effect of a limit on the model below.
void ForgetBeyond(int32_t limit, std::map<int32_t, KvBlock*>* known,
                  std::map<const KvBlock*, int32_t>* token_of, std::list<KvBlock*>* lru) {
  const auto beyond = [limit](const KvBlock* block) { return block->id >= limit; };
  lru->remove_if(beyond);
  std::erase_if(*known, [&](const auto& entry) { return beyond(entry.second); });
  std::erase_if(*token_of, [&](const auto& entry) { return beyond(entry.first); });
}

// Random operations against a plain model: references per block, LRU as a list, contents as a map.
TEST(BlockPoolTest, RandomOperationsAgreeWithAModel) {
  for (uint32_t seed = 1; seed <= 20; ++seed) {
    std::mt19937 random(seed);
    const int32_t num_blocks = 2 + static_cast<int32_t>(random() % 14);
    BlockPool pool(num_blocks, 1);
    std::vector<KvBlock*> held;         // one entry per reference
    std::map<int32_t, KvBlock*> known;  // token -> block
    std::map<const KvBlock*, int32_t> token_of;
    std::list<KvBlock*> lru;  // cached and unreferenced, oldest first
    const auto references = [&](const KvBlock* block) { return std::count(held.begin(), held.end(), block); };
    for (int step = 0; step < 2000; ++step) {
      const uint32_t operation = random() % 25 == 0 ? 4 : random() % 4;
      if (operation == 4) {
        pool.SetLimit(1 + static_cast<int32_t>(random() % num_blocks));
        ForgetBeyond(pool.limit(), &known, &token_of, &lru);
      } else if (operation == 0 && pool.num_free() > 0) {
        KvBlock* block = pool.Allocate();
        ASSERT_EQ(references(block), 0);
        ASSERT_LT(block->id, pool.limit());
        if (token_of.contains(block)) {  // evicted: the oldest, and only when no free block was left
          ASSERT_EQ(block, lru.front());
          ASSERT_EQ(pool.num_free(), static_cast<int32_t>(lru.size()) - 1);
          lru.pop_front();
          known.erase(token_of[block]);
          token_of.erase(block);
        }
        held.push_back(block);
      } else if (operation == 1 && !held.empty()) {
        const size_t index = random() % held.size();
        KvBlock* block = held[index];
        held.erase(held.begin() + static_cast<std::ptrdiff_t>(index));
        pool.Release(block);
        if (references(block) == 0 && token_of.contains(block)) lru.push_back(block);
      } else if (operation == 2 && !held.empty()) {
        KvBlock* block = held[random() % held.size()];
        const std::vector<int32_t> token = {static_cast<int32_t>(random() % 20)};
        pool.Remember(block, Content(token));
        KvBlock* const other = known.contains(token[0]) ? known[token[0]] : nullptr;
        const bool gives_way = other != nullptr && references(other) == 0;
        if (block->id < pool.limit() && !token_of.contains(block) && (other == nullptr || gives_way)) {
          if (gives_way) lru.remove(other);
          token_of.erase(other);
          known[token[0]] = block;
          token_of[block] = token[0];
        }
      } else if (operation == 3) {
        const std::vector<int32_t> token = {static_cast<int32_t>(random() % 20)};
        KvBlock* found = pool.Find(Content(token));
        ASSERT_EQ(found, known.contains(token[0]) ? known[token[0]] : nullptr);
        if (found != nullptr) {
          lru.remove(found);
          pool.Reference(found);
          held.push_back(found);
        }
      }
      ASSERT_EQ(pool.num_used(), static_cast<int32_t>(std::set<KvBlock*>(held.begin(), held.end()).size()));
      ASSERT_EQ(pool.num_cached(), static_cast<int32_t>(lru.size()));
      const absl::Status integrity = pool.CheckIntegrity();
      ASSERT_TRUE(integrity.ok()) << integrity << " seed " << seed << " step " << step;
    }
  }
}

}  // namespace
}  // namespace somnus
