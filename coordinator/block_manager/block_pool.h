#pragma once
// The device's KV cache blocks in the coordinator's books: ids, reference counts, which blocks are free and
// which are cached.
//
// Every block is used (referenced by block tables) or free. A free block is cached while its contents are
// known and can be adopted again. Free blocks without known contents are taken first, the lowest id of all,
// so that used blocks gather at the beginning of the cache and the end of the cache can be given up
// (SetLimit); then cached blocks are taken in least recently used order.
//
// A limit may take blocks at the end out of use: blocks beyond the limit are not given out and not cached; a
// used block beyond the limit stays used until its release, and is not free then.
//
// A cached block is found by a hash of its whole prefix, but a hit is decided by comparison: the same tokens,
// the same parent (by the parent's content id, which is never used twice) and, at the root, the same salt. No
// hash collision, by chance or by intent, can give a sequence the keys and values of other tokens.
//
// The null block (base/null_block.h) is never given out, and no count below includes it. Not thread safe:
// owned by the engine's loop.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/null_block.h"
#include "coordinator/block_manager/block_events.h"
#include "coordinator/block_manager/block_residency.h"
#include "coordinator/block_manager/cache_counts.h"
#include "coordinator/block_manager/lowest_id_set.h"
#include "coordinator/block_manager/passed_contents.h"

namespace somnus {

struct KvBlock {
  int32_t id = 0;
  int32_t ref_count = 0;
  // Of the list of cached blocks; null while the block is not in it.
  KvBlock* prev = nullptr;
  KvBlock* next = nullptr;
  // Set while the contents are known (content_id != 0).
  uint64_t content_id = 0;         // unique over the pool's life
  uint64_t parent_content_id = 0;  // 0: the first block of a sequence
  uint64_t hash = 0;               // of salt and all tokens up to the block's end
  std::vector<int32_t> tokens;     // block_size tokens
  std::string salt;                // of a first block
};

// The identity of a block's contents: a cached block is adopted when every field is equal.
struct BlockContent {
  uint64_t parent_content_id = 0;
  uint64_t hash = 0;
  absl::Span<const int32_t> tokens;
  absl::string_view salt;  // of a first block; empty for later blocks
};

// Returns the hash of a sequence's block from its parent's hash, its tokens and its salt. The first block has
// the parent hash 0; only the first has a salt.
uint64_t HashBlock(uint64_t parent_hash, absl::Span<const int32_t> tokens, absl::string_view salt);

class BlockPool {
 public:
  // `num_blocks` counts the null block. `recorder` is told of contents that enter and leave the cache; it is
  // borrowed; null: nobody wants events. `residency` is borrowed, too; null: nothing is measured. `passed`,
  // borrowed or null, is told of each cached block whose contents are lost.
  BlockPool(int32_t num_blocks, int32_t block_size, BlockEventRecorder* recorder = nullptr,
            BlockResidency* residency = nullptr, PassedContents* passed = nullptr);
  BlockPool(const BlockPool&) = delete;
  BlockPool& operator=(const BlockPool&) = delete;

  // Takes a free block and forgets the block's cached contents; the block has one reference. The pool must
  // not be exhausted.
  KvBlock* Allocate();
  // Adds a reference to a block that is used or cached. The null block has no references: Reference and
  // Release of the null block do nothing.
  void Reference(KvBlock* block);
  // Drops a reference; with the last one the block is free.
  void Release(KvBlock* block);
  // Stands in a table for a block that was given back.
  KvBlock* null_block() { return &blocks_[kNullBlock]; }

  // From now on only blocks with ids below `num_blocks`, which counts the null block, are given out; at least
  // 1. The contents of the other blocks are forgotten. Takes time in proportion to the difference.
  void SetLimit(int32_t num_blocks);
  int32_t limit() const { return limit_; }
  // The number of blocks of the whole cache, the null block included.
  int32_t size() const { return static_cast<int32_t>(blocks_.size()); }
  // 1 + the highest id that is used. Takes time in proportion to the number of higher ids.
  int32_t EndOfUsed() const;

  // Returns the cached or used block with this content, or null.
  KvBlock* Find(const BlockContent& content);
  // Makes a used block's contents known. When the pool knows a second block with equal contents, a used
  // second block stays known, and a cached second block hands its place to this block: otherwise the pool
  // would give out the cached block first and forget the contents, although the contents were used last.
  // `content_id`: the id that the contents had before, in this pool or elsewhere; 0: the contents get a new
  // id.
  void Remember(KvBlock* block, const BlockContent& content, uint64_t content_id = 0);
  // Forgets the contents of a block, used or cached: the block cannot be adopted any more.
  void Forget(KvBlock* block, CacheLoss cause);
  // Forgets the contents of all blocks, of used blocks, too.
  void ForgetAll(CacheLoss cause);
  // As ForgetAll, but for the blocks that stay; `stays` is by id.
  void ForgetAllBut(const std::vector<bool>& stays, CacheLoss cause);
  // The ids of cached blocks, at most `count`, the most recently used first.
  std::vector<int32_t> LastCached(int32_t count) const;
  // The least recently used blocks first, which are given out next.
  std::vector<const KvBlock*> FirstCached(int32_t count) const;

  int32_t num_free() const { return unknown_.size() + num_cached_; }
  int32_t num_cached() const { return num_cached_; }  // all cached blocks are free
  int32_t num_used() const { return num_used_; }
  // Of blocks that are used or can be: without a limit all.
  int32_t num_total() const { return num_free() + num_used_; }
  const KvBlock* block(int32_t id) const { return &blocks_[id]; }
  bool is_used(int32_t id) const { return blocks_[id].ref_count > 0; }
  // How often the contents of a used block were forgotten since the start.
  int64_t num_used_forgotten() const { return num_used_forgotten_; }
  // Counts of blocks whose contents became known and were forgotten, whether the blocks were used or not.
  const CacheBlockCounts& counts() const { return counts_; }

  // Walks over all blocks. Internal names what does not add up: free or used or beyond the limit, links,
  // counts, or the index.
  absl::Status CheckIntegrity() const;
  // The part of CheckIntegrity that concerns the counts, and the blocks with ids from `first` up to `end`.
  absl::Status CheckBlocks(int32_t first, int32_t end) const;

 private:
  // A block becomes free, or stops being free; the block's known contents do not change in between.
  void AddFree(KvBlock* block);
  void RemoveFree(KvBlock* block);
  // `from` is a cached block, `to` a used block without known contents.
  void MoveContent(KvBlock* from, KvBlock* to);
  // The block must not be free.
  void ClearContent(KvBlock* block, CacheLoss cause);
  absl::Status CheckBlock(const KvBlock& block) const;

  const int32_t block_size_;
  std::vector<KvBlock> blocks_;  // never resized: the list points into it
  LowestIdSet unknown_;          // free blocks without known contents
  KvBlock list_;                 // of cached blocks; sentinel: next is the least recently used
  int32_t limit_;
  int32_t num_used_ = 0;
  int32_t num_cached_ = 0;
  uint64_t next_content_id_ = 1;
  int64_t num_used_forgotten_ = 0;
  absl::flat_hash_map<uint64_t, KvBlock*> index_;
  CacheBlockCounts counts_;
  BlockEventRecorder* const recorder_;  // may be null
  BlockResidency* const residency_;     // may be null
  PassedContents* const passed_;        // may be null
};

}  // namespace somnus
