#pragma once
// The prefix cache in both of its levels, the device's blocks and the host tier behind the device: how the
// beginning of a sequence is found there, how computed blocks become known, and how contents are forgotten.
//
// The hashes of blocks depend on the sequence's tokens and salt alone, so that a hash is computed once. A
// table keeps the hashes of its blocks. The hashes of a sequence that still waits for blocks are kept here
// until the sequence gets blocks or is withdrawn.
//
// Host level: cached blocks are copied to the host before the device's blocks are given to other sequences
// (StoreOnHost), and copied back where a later sequence begins with the same tokens. A chain is looked up on
// the device first, and from the first block on that the device lacks on the host alone.
//
// Where attention has a reach, a beginning is found by the blocks that the query behind the beginning
// attends: blocks before may be lost, as long as PassedContents knows their tokens.
//
// Invariant: pins hold no block whose contents are forgotten, after every call.
//
// Ownership: owns the hashes of waiting sequences, and the list of copies that steps still have to make.
// Borrows everything else. Not thread safe: owned by the block manager.

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "coordinator/block_manager/block_events.h"
#include "coordinator/block_manager/block_manager_options.h"
#include "coordinator/block_manager/block_ops.h"
#include "coordinator/block_manager/block_pool.h"
#include "coordinator/block_manager/block_table.h"
#include "coordinator/block_manager/cache_counts.h"
#include "coordinator/block_manager/host_blocks.h"
#include "coordinator/block_manager/passed_contents.h"
#include "coordinator/block_manager/prefix_pins.h"

namespace somnus {

class PrefixCache {
 public:
  // `recorder` may be null: nobody wants events. Otherwise the first event says that the cache is empty.
  PrefixCache(const BlockManagerOptions& options, BlockPool* pool, PassedContents* passed,
              BlockTables* tables, PrefixPins* pins, HostBlocks* host, BlockEventRecorder* recorder);
  PrefixCache(const PrefixCache&) = delete;

  // Returns how many tokens an Allocate of the block manager would find, if the sequence used the cache.
  int32_t CountCached(int64_t sequence, absl::Span<const int32_t> tokens, absl::string_view salt);
  // Forgets the hashes of `sequence`, which has no table and will never get one again.
  void Withdraw(int64_t sequence) { waiting_hashes_.erase(sequence); }

  struct Beginning {
    bool reads_host = false;  // the prefix may go on in the host tier, if SetReadsHost allows
    bool whole = false;       // also blocks that no later query attends
  };
  // Begins the table of a sequence that has none: references the longest cached prefix that leaves at least
  // the last token to compute, but for blocks that no later query attends, and takes nothing else.
  BlockTable Begin(int64_t sequence, absl::Span<const int32_t> tokens, absl::string_view salt, bool use_cache,
                   Beginning how);
  // Releases the blocks of a table, the last block first, and keeps the hashes.
  void GiveUp(int64_t sequence, BlockTable table);
  // The table that Begin has made is used: takes blocks for the part that the host tier has, which must be
  // free.
  void Adopt(absl::Span<const int32_t> tokens, BlockTable* table);
  // Remembers the full blocks among the first `num_computed` of `tokens`.
  void Commit(absl::Span<const int32_t> tokens, int64_t num_computed, BlockTable* table);

  // Whether lookups from now on go on in the host tier, where the device has no more. The tokens that an
  // Allocate finds there count as cached: Allocate takes blocks for those tokens, and TakeHostHits returns
  // the copies into the blocks since the last call.
  void SetReadsHost(bool reads) { reads_host_ = reads; }
  bool reads_host() const { return reads_host_; }
  std::vector<BlockCopyOp> TakeHostHits() { return std::exchange(host_hits_, {}); }
  // Stores up to `count` of the cached blocks that are given out next and are not in the host tier yet, in a
  // step that swaps nothing in: appends the copies, and returns the contents for
  // HostPrefixCache::NoteStored.
  std::vector<uint64_t> StoreOnHost(int32_t count, int64_t step, std::vector<BlockCopyOp>* swap_outs);

  // Forgets the contents of the blocks known for the leading tokens of `tokens`, in both levels: no sequence
  // adopts the blocks any more. Tables stay.
  void ForgetPrefix(absl::Span<const int32_t> tokens, absl::string_view salt);
  // Forgets all contents of both levels, and breaks the chains of all tables: later blocks of these sequences
  // stay out of the cache.
  void Clear(CacheLoss cause);
  // Forgets the contents of the device's blocks but for some; `stays` is by block id.
  void ForgetAllBut(const std::vector<bool>& stays, CacheLoss cause);

  // Returns the contents that have entered and left the cache, in both levels, since the last call. Returns
  // nothing unless events are recorded; recorded events have to be taken again and again.
  std::vector<BlockEvent> TakeEvents();
  // How many blocks were hashed since the start: the cost of the prefix cache.
  int64_t num_blocks_hashed() const { return num_blocks_hashed_; }

 private:
  // A block of a beginning: on the device, in the host tier, or lost.
  struct Link {
    KvBlock* block = nullptr;
    const HostPrefixCache::Entry* entry = nullptr;
    uint64_t content_id = 0;
  };
  Link FindLink(const BlockContent& content, bool looks_on_host);
  // Begins the table with the longest beginning, of `max_blocks` blocks at most, of which the blocks are
  // there that the next query attends: first some on the device, then some in the host tier.
  void BeginInReach(absl::Span<const int32_t> tokens, int64_t max_blocks, bool looks_on_host,
                    BlockTable* table);
  // The id of a content that the device lacks; 0: nothing leads to later blocks.
  uint64_t IdElsewhere(const BlockContent& content) const;
  // The content of the first block of `tokens` that is not committed yet.
  BlockContent ContentAt(BlockTable* table, absl::Span<const int32_t> tokens);
  bool CachesAny() const { return pool_.counts().num_cached() > 0 || host_.cache().size() > 0; }
  // Records that the cache is empty, if the cache was not before (`had_any`) and is now.
  void NoteIfCleared(bool had_any);

  const BlockManagerOptions& options_;
  BlockPool& pool_;
  PassedContents& passed_;
  BlockTables& tables_;
  PrefixPins& pins_;
  HostBlocks& host_;
  BlockEventRecorder* const recorder_;                                  // may be null
  absl::flat_hash_map<int64_t, std::vector<uint64_t>> waiting_hashes_;  // by sequence without a table
  std::vector<BlockCopyOp> host_hits_;                                  // since the last TakeHostHits
  bool reads_host_ = false;
  int64_t num_blocks_hashed_ = 0;
};

}  // namespace somnus
