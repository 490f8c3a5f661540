#pragma once
// The device's KV cache blocks as the coordinator sees them: ids, reference counts, which are free and which
// are cached.
//
// Every block is in exactly one of three states: used (referenced by block tables), cached (unreferenced, but
// its contents are known and can be adopted again) or free (neither). Cached and free blocks are in one
// doubly linked list, whose head is taken next: free blocks go to the head, cached ones to the tail, so that
// the cache is evicted in least recently used order and only when no free block is left.
//
// A cached block is found by a hash of its whole prefix, but a hit is decided by comparison: the same tokens,
// the same parent (by the parent's content id, which is never used twice) and, at the root, the same salt. No
// hash collision, by chance or by intent, can give a sequence the keys and values of other tokens.
//
// Block 0 is reserved for padding and never given out. Not thread safe: owned by the engine's loop.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

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
  // `num_blocks` includes block 0.
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
  // Makes a used block's contents known. When another block is known for them already, that one stays.
  void Remember(KvBlock* block, const BlockContent& content);
  // Forgets the contents of a block, used or cached: it cannot be adopted any more.
  void Forget(KvBlock* block);
  // Forgets the contents of all blocks, used ones too.
  void ForgetAll();

  int32_t num_blocks() const { return static_cast<int32_t>(blocks_.size()) - 1; }  // without block 0
  int32_t num_available() const { return num_available_; }                         // free or cached
  int32_t num_cached() const { return num_cached_; }                               // cached, not used
  int32_t num_used() const { return num_blocks() - num_available_; }
  const KvBlock* block(int32_t id) const { return &blocks_[id]; }

  // Walks over all blocks. Internal names what does not add up: free + used + cached = total, links, counts,
  // or the index.
  absl::Status CheckIntegrity() const;

 private:
  void Link(KvBlock* block, KvBlock* after);
  void Unlink(KvBlock* block);
  // The block must not be in the free list.
  void ClearContent(KvBlock* block);

  const int32_t block_size_;
  std::vector<KvBlock> blocks_;  // never resized: the list points into it
  KvBlock list_;                 // sentinel: next is the head, prev the tail
  int32_t num_available_ = 0;
  int32_t num_cached_ = 0;
  uint64_t next_content_id_ = 1;
  absl::flat_hash_map<uint64_t, KvBlock*> index_;
};

}  // namespace somnus
