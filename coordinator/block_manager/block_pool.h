#pragma once
// The device's KV cache blocks as the coordinator sees them: ids, reference counts, which are free and which
// are cached.
//
// Every block is used (referenced by block tables) or free. A free block is cached while its contents are
// known and can be adopted again. Free blocks are in one doubly linked list, whose head is taken next: cached
// ones go to the tail, the others to the head, so that the cache is evicted in least recently used order and
// only when no other free block is left.
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

namespace somnus {

struct KvBlock {
  int32_t id = 0;
  int32_t ref_count = 0;
  // Of the free list; null while used.
  KvBlock* prev = nullptr;
  KvBlock* next = nullptr;
  // Set while the contents are known (content_id != 0).
  uint64_t content_id = 0;         // unique over the pool's life
  uint64_t parent_content_id = 0;  // 0: the first block of a sequence
  uint64_t hash = 0;               // of salt and all tokens up to the block's end
  std::vector<int32_t> tokens;     // block_size of them
  std::string salt;                // of a first block
};

// What identifies the contents of a block: a cached block is adopted when all of it is equal.
struct BlockContent {
  uint64_t parent_content_id = 0;
  uint64_t hash = 0;
  absl::Span<const int32_t> tokens;
  absl::string_view salt;  // of a first block; empty for the others
};

// Returns the hash of a sequence's block from its parent's hash, its tokens and its salt. The first block has
// the parent hash 0; only the first has a salt.
uint64_t HashBlock(uint64_t parent_hash, absl::Span<const int32_t> tokens, absl::string_view salt);

class BlockPool {
 public:
  // `num_blocks` counts the null block.
  BlockPool(int32_t num_blocks, int32_t block_size);
  BlockPool(const BlockPool&) = delete;
  BlockPool& operator=(const BlockPool&) = delete;

  // Takes the head of the free list and forgets what it cached; it has one reference. The pool must not be
  // exhausted.
  KvBlock* Allocate();
  // Adds a reference; a cached block leaves the free list.
  void Reference(KvBlock* block);
  // Drops a reference; with the last one the block goes into the free list.
  void Release(KvBlock* block);

  // Returns the cached or used block with this content, or null.
  KvBlock* Find(const BlockContent& content);
  // Makes a used block's contents known. When the pool knows another block for them already, that one stays.
  void Remember(KvBlock* block, const BlockContent& content);
  // Forgets the contents of a block, used or cached: it cannot be adopted any more.
  void Forget(KvBlock* block);
  // Forgets the contents of all blocks, used ones too.
  void ForgetAll();
  // As ForgetAll, but for those blocks; `stays` is by id.
  void ForgetAllBut(const std::vector<bool>& stays);
  // The ids of cached blocks, at most `count`, the most recently used first.
  std::vector<int32_t> LastCached(int32_t count) const;

  int32_t num_total() const { return static_cast<int32_t>(TotalBlocks(blocks_.size())); }
  int32_t num_free() const { return num_free_; }      // cached ones included
  int32_t num_cached() const { return num_cached_; }  // all of them free
  int32_t num_used() const { return num_total() - num_free_; }
  const KvBlock* block(int32_t id) const { return &blocks_[id]; }

  // Walks over all blocks. Internal names what does not add up: free + used = total, links, counts, or the
  // index.
  absl::Status CheckIntegrity() const;

 private:
  void Link(KvBlock* block, KvBlock* after);
  void Unlink(KvBlock* block);
  // The block must not be in the free list.
  void ClearContent(KvBlock* block);

  const int32_t block_size_;
  std::vector<KvBlock> blocks_;  // never resized: the list points into it
  KvBlock list_;                 // sentinel: next is the head, prev the tail
  int32_t num_free_ = 0;
  int32_t num_cached_ = 0;
  uint64_t next_content_id_ = 1;
  absl::flat_hash_map<uint64_t, KvBlock*> index_;
};

}  // namespace somnus
