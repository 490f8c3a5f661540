#pragma once
// Block tables over one BlockPool: which blocks hold the keys and values of which sequence (PagedAttention).
//
// Reuse is safe while a step is in flight: workers execute steps in order, so a block freed after step k was
// sent is written or read by its new owner in step k+1 at the earliest, when every access of step k is over.
// Only a swap of step k to the host may still read then, on a GPU; a worker waits for that swap before a step
// that gives the block to a sequence.
// A block that no later query attends is given back in the same way, when the step is made that attends it
// last. For the same reason a block may be remembered for the prefix cache as soon as the step that fills the
// block has been sent. A shared block is never written: positions at or beyond a sequence's adopted prefix
// are in blocks of the sequence alone, and a fork's last, partly filled block is copied first
// (SharedBlocks).
//
// The BlockManager itself gives blocks to sequences and takes blocks back; each part has one other idea, and
// callers reach the part by its accessor. BlockPool: which blocks are used, free and cached. PrefixCache: how
// beginnings are found, remembered and forgotten. PrefixPins: beginnings that stay. SwappedSequences:
// sequences whose blocks are in host memory. KeptBlocks: blocks that outlive a sleep. HostBlocks: the host
// tier's blocks. SharedBlocks: forks, and copies on write. Watermark: how many blocks admission leaves free.
// BlockAudit: whether the books of all parts agree.
//
// Ownership: owns the tables and all parts; sequences are named by their ids. Not thread safe: the engine's
// loop alone uses it. No call blocks; a call with an unknown id is a broken invariant.

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "coordinator/block_manager/block_audit.h"
#include "coordinator/block_manager/block_events.h"
#include "coordinator/block_manager/block_manager_options.h"
#include "coordinator/block_manager/block_ops.h"
#include "coordinator/block_manager/block_pool.h"
#include "coordinator/block_manager/block_table.h"
#include "coordinator/block_manager/cache_counts.h"
#include "coordinator/block_manager/host_blocks.h"
#include "coordinator/block_manager/kept_blocks.h"
#include "coordinator/block_manager/passed_contents.h"
#include "coordinator/block_manager/prefix_cache.h"
#include "coordinator/block_manager/prefix_pins.h"
#include "coordinator/block_manager/shared_blocks.h"
#include "coordinator/block_manager/swapped_sequences.h"
#include "coordinator/block_manager/watermark.h"

namespace somnus {

class BlockManager {
 public:
  explicit BlockManager(const BlockManagerOptions& options);

  // How many blocks hold `num_tokens` tokens.
  int32_t BlocksFor(int64_t num_tokens) const { return somnus::BlocksFor(num_tokens, options_.block_size); }
  // Whether a new sequence of `num_tokens` tokens can be admitted that has `num_adopted` of its blocks from
  // the prefix cache: the question that Allocate asks, where nothing is given back. With `ignore_watermark`,
  // for when nothing else runs, all blocks count. Returns kNever only for a sequence that an empty pool could
  // not hold.
  AllocStatus CanAllocate(int64_t num_tokens, bool ignore_watermark, int32_t num_adopted = 0) const;
  // Whether the table can be extended to hold `num_tokens` tokens: the question that Grow asks. The watermark
  // is there for growth, so all blocks count. kNever: as above.
  AllocStatus CanAppend(int64_t sequence, int64_t num_tokens) const;

  // Makes the table of a new sequence: adopts the longest cached prefix of `tokens` if `use_cache`, and takes
  // blocks for the other tokens, or with max_step_tokens for as many as the next step may need; `whole`: for
  // all, and none of the prefix is given back, as beams want it. Returns how many tokens are in the cache
  // already: a multiple of the block size that leaves at least the last token to compute. Returns -1, and
  // takes nothing, when there are too few blocks.
  int32_t Allocate(int64_t sequence, absl::Span<const int32_t> tokens, absl::string_view salt, bool use_cache,
                   bool ignore_watermark, bool whole = false);
  // Returns how many more blocks such an Allocate would need; with 0 or less, Allocate would succeed.
  int32_t BlocksMissing(int64_t sequence, absl::Span<const int32_t> tokens, absl::string_view salt,
                        bool use_cache, bool ignore_watermark, bool whole = false);
  // Extends the table to hold `num_tokens` tokens and appends the new blocks' ids to `new_blocks`. False, and
  // nothing is taken, unless CanAppend says kOk.
  bool Grow(int64_t sequence, int64_t num_tokens, std::vector<int32_t>* new_blocks);
  // Extends the table of a sequence of `num_tokens` tokens to what the next step may need, with
  // max_step_tokens as far as blocks are free. Appends the new blocks' ids to `new_blocks`.
  void GrowForStep(int64_t sequence, int64_t num_tokens, std::vector<int32_t>* new_blocks);
  // How many more blocks a GrowForStep would need that takes all that the next step may need; 0 or less:
  // none.
  int32_t BlocksMissingForStep(int64_t sequence, int64_t num_tokens) const;
  // How many tokens the table's blocks hold, with the tokens of blocks that were given back.
  int64_t Capacity(int64_t sequence) const {
    return int64_t{TableOf(sequence, tables_).num_blocks()} * options_.block_size;
  }
  // As Grow, for lookahead slots, which may stay without use: False also where the growth would leave fewer
  // than `reserve` blocks free, or fewer than admission does.
  bool GrowAhead(int64_t sequence, int64_t num_tokens, int32_t reserve, std::vector<int32_t>* new_blocks);
  // Gives back the blocks behind those that hold `num_tokens` tokens, none of which was committed.
  void Shrink(int64_t sequence, int64_t num_tokens);
  // Returns how many more blocks such a Grow would need; with 0 or less, Grow would succeed.
  int32_t BlocksMissingToGrow(int64_t sequence, int64_t num_tokens) const;
  // Remembers the full blocks among the first `num_computed` of `tokens`, which are in the cache, or will be
  // once the steps scheduled so far are done.
  void Commit(int64_t sequence, absl::Span<const int32_t> tokens, int64_t num_computed);
  // Gives back the blocks that no query at `next_position` or later attends, with attention_reach; with the
  // prefix cache only blocks that were committed, which stay cached. Returns their number. Beams, which share
  // blocks with beams that are further on, must not call this.
  int32_t GiveBackUnseen(int64_t sequence, int64_t next_position);
  // Releases the table, last block first.
  void Free(int64_t sequence);

  // Counts the blocks that Free would make free if it was called for one sequence after another: a block that
  // several of the sequences share counts with the last of these.
  class FreedBlocks {
   public:
    void Add(const BlockManager& manager, int64_t sequence);
    int32_t count() const { return count_; }

   private:
    absl::flat_hash_map<int32_t, int32_t> references_;  // of shared blocks by id: how many were counted
    int32_t count_ = 0;
  };

  // Forgets all cached contents, and lets no live sequence's later blocks enter the cache; tables stay.
  void ResetPrefixCache(CacheLoss cause = CacheLoss::kReset);
  // From now on only blocks with ids below `num_blocks`, which counts the null block and is at least 1, are
  // given out, and the others are not cached. Tables stay.
  void SetLimit(int32_t num_blocks);
  // 1 + the highest id in a table or among the kept blocks; 0 where there is no such block.
  int32_t EndOfUsed() const;

  bool HasTable(int64_t sequence) const { return tables_.contains(sequence); }
  std::vector<int32_t> Table(int64_t sequence) const;
  int32_t block_size() const { return options_.block_size; }

  const BlockPool& pool() const { return pool_; }
  // The stays of sampled blocks that have ended since the last call.
  std::vector<BlockStay> TakeStays() {
    return residency_ == nullptr ? std::vector<BlockStay>() : residency_->Take();
  }
  PrefixCache& cache() { return cache_; }
  const PrefixCache& cache() const { return cache_; }
  PrefixPins& pins() { return pins_; }  // without the prefix cache pins hold no blocks
  const PrefixPins& pins() const { return pins_; }
  SwappedSequences& swapped() { return swapped_; }
  const SwappedSequences& swapped() const { return swapped_; }
  KeptBlocks& kept() { return kept_; }
  const KeptBlocks& kept() const { return kept_; }
  const HostBlocks& host() const { return host_; }
  HostPrefixCache& host_cache() { return *host_.mutable_cache(); }
  SharedBlocks& sharing() { return sharing_; }
  const Watermark& watermark() const { return watermark_; }

  // Internal when a part's own check fails, when a block's reference count is not the number of its
  // occurrences in tables and pins, or when the host blocks in use are not those of kept, swapped and cached
  // blocks.
  absl::Status CheckIntegrity() const { return audit_.CheckAll(); }
  // A check that an engine can afford while requests may come: the counts, and the next kCheckedBlocks blocks
  // behind those of the last call. While no sequence has a table, this check sees every reference that was
  // not given back.
  static constexpr int32_t kCheckedBlocks = 4096;
  absl::Status CheckNextBlocks() { return audit_.CheckNext(kCheckedBlocks); }

 private:
  int32_t Needed(const BlockTable& table, int64_t num_tokens) const {
    return BlocksFor(num_tokens) - table.num_blocks();
  }
  int32_t SizeOf(const BlockTable& table, int64_t num_tokens, bool whole) const {
    return whole ? BlocksFor(num_tokens) : TableSize(options_, num_tokens, table.num_given_back);
  }

  const BlockManagerOptions options_;
  const std::unique_ptr<BlockEventRecorder> recorder_;  // null: nobody wants events
  const std::unique_ptr<BlockResidency> residency_;     // null: nothing is measured
  PassedContents passed_;
  BlockPool pool_;
  BlockTables tables_;
  Watermark watermark_;
  PrefixPins pins_;
  HostBlocks host_;
  PrefixCache cache_;
  SwappedSequences swapped_;
  KeptBlocks kept_;
  SharedBlocks sharing_;
  BlockAudit audit_;
};

}  // namespace somnus
