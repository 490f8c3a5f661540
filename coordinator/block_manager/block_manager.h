#pragma once
// Block tables over one BlockPool: which blocks hold the keys and values of which sequence (PagedAttention).
//
// Reuse is safe while a step is in flight: workers execute steps in order, so a block freed after step k was
// sent is written or read by its new owner in step k+1 at the earliest, when every access of step k is over.
// For the same reason a block may be remembered for the prefix cache as soon as the step that fills it has
// been sent. A shared block is never written: positions at or beyond a sequence's adopted prefix are in
// blocks of its own, and a fork's last, partly filled block is copied by MakeWritable first.
//
// Blocks are known by hashes of the sequence's tokens and salt alone. They are computed once: a table keeps
// its own, and those of a sequence that is still waiting for blocks are kept until it gets them or is
// withdrawn.
//
// Ownership: owns the pool and all tables; sequences are known by their ids. Not thread safe: used by the
// engine's loop alone. No call blocks, none throws; calls with an unknown id are broken invariants.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "coordinator/block_manager/block_pool.h"

namespace somnus {

enum class AllocStatus {
  kOk,
  kLater,  // not now: too few blocks are free
  kNever,  // more than the pool has
};

struct BlockManagerOptions {
  int32_t num_blocks = 0;  // including block 0
  int32_t block_size = 16;
  bool enable_prefix_caching = true;
  double watermark =
      0.01;  // share of the blocks that admission leaves free, so that running sequences can grow
};

// A block whose contents must be copied before the step writes.
struct BlockCopyOp {
  int32_t src;
  int32_t dst;
};

class BlockManager {
 public:
  explicit BlockManager(const BlockManagerOptions& options);

  int32_t BlocksFor(int64_t num_tokens) const;
  // Whether a new sequence of `num_tokens` tokens can be admitted. With `ignore_watermark` (nothing else
  // runs) all blocks count. Returns kNever only for what an empty pool could not hold. Nothing calls it yet:
  // it is for admission of whole prompts and of groups.
  AllocStatus CanAllocate(int64_t num_tokens, bool ignore_watermark) const;

  // A table for a new sequence: adopts the longest cached prefix of `tokens` (unless !use_cache), and takes
  // blocks for all of them. At least the last token is left to compute; the answer, tokens that are in the
  // cache already, is a multiple of the block size. -1 when the blocks do not suffice: nothing is taken then.
  int32_t Allocate(int64_t sequence, absl::Span<const int32_t> tokens, absl::string_view salt, bool use_cache,
                   bool ignore_watermark);
  // How many blocks more would have to be available for such an Allocate to succeed; not more than 0: it
  // would.
  int32_t BlocksMissing(int64_t sequence, absl::Span<const int32_t> tokens, absl::string_view salt,
                        bool use_cache, bool ignore_watermark);
  // The tokens that such an Allocate would find in the cache.
  int32_t CountCached(int64_t sequence, absl::Span<const int32_t> tokens, absl::string_view salt);
  // `sequence` has no table and will not be allocated any more: what is kept of it is forgotten.
  void Withdraw(int64_t sequence) { waiting_hashes_.erase(sequence); }
  // Extends the table to hold `num_tokens`; all or nothing. New ids are appended to `new_blocks`.
  bool Grow(int64_t sequence, int64_t num_tokens, std::vector<int32_t>* new_blocks);
  // The first `num_computed` of `tokens` are, or will be by the steps already sent, in the cache: remembers
  // the full blocks among them.
  void Commit(int64_t sequence, absl::Span<const int32_t> tokens, int64_t num_computed);
  // Releases the table, last block first.
  void Free(int64_t sequence);
  // Counts what Free would make available, one sequence after another: a block that several of them share
  // counts with the last one.
  class FreedBlocks {
   public:
    void Add(const BlockManager& manager, int64_t sequence);
    int32_t count() const { return count_; }

   private:
    absl::flat_hash_map<int32_t, int32_t> references_;  // given back so far, of shared blocks
    int32_t count_ = 0;
  };

  // `child` shares all blocks of `parent`. Nothing calls Fork and MakeWritable yet: they are for parallel
  // sampling and beam search.
  void Fork(int64_t parent, int64_t child);
  // Before `sequence` writes at `position`: a shared block there is replaced by a new one, with a copy to be
  // done. False when no block is free.
  bool MakeWritable(int64_t sequence, int64_t position, std::vector<BlockCopyOp>* copies);

  // The blocks known for the leading tokens of `tokens` are forgotten: nobody adopts them any more. Tables
  // stay.
  void ForgetPrefix(absl::Span<const int32_t> tokens, absl::string_view salt);
  // Every cached content is forgotten; tables stay.
  void ResetPrefixCache();

  std::vector<int32_t> Table(int64_t sequence) const;
  int32_t block_size() const { return options_.block_size; }
  int32_t total_blocks() const { return pool_.num_blocks(); }
  int32_t available_blocks() const { return pool_.num_available(); }
  int32_t used_blocks() const { return pool_.num_used(); }
  int32_t cached_blocks() const { return pool_.num_cached(); }
  // Since the start: what hashing has cost.
  int64_t num_blocks_hashed() const { return num_blocks_hashed_; }

  // The pool's own check, and: every block's count equals its occurrences in tables.
  absl::Status CheckIntegrity() const;

 private:
  struct BlockTable {
    std::vector<KvBlock*> blocks;
    std::string salt;
    int32_t num_committed = 0;     // leading blocks whose contents the pool was told
    std::vector<uint64_t> hashes;  // of the leading full blocks, num_committed at least
    uint64_t last_content_id =
        0;  // of the block known for that content; 0 with num_committed > 0: chain is broken
  };

  BlockContent ContentAt(BlockTable* table, absl::Span<const int32_t> tokens);
  // Of a sequence without one: the cached prefix is referenced, nothing else is taken.
  BlockTable BeginTable(int64_t sequence, absl::Span<const int32_t> tokens, absl::string_view salt,
                        bool use_cache);
  // Undoes BeginTable, but keeps the hashes.
  void GiveUpTable(int64_t sequence, BlockTable table);
  int32_t Missing(const BlockTable& table, int64_t num_tokens, bool ignore_watermark) const;
  BlockTable& TableOf(int64_t sequence);

  const BlockManagerOptions options_;
  const int32_t watermark_blocks_;
  BlockPool pool_;
  absl::flat_hash_map<int64_t, BlockTable> tables_;
  absl::flat_hash_map<int64_t, std::vector<uint64_t>> waiting_hashes_;  // by sequence without a table
  int64_t num_blocks_hashed_ = 0;
};

}  // namespace somnus
