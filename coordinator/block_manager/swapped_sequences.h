#pragma once
// Sequences whose blocks are in the host tier: a sequence that is swapped out has a table of host blocks
// instead of a table of device blocks, and comes back without computing anything twice.
//
// Sequences that leave together share host blocks as they shared device blocks, and share device blocks again
// when they come back together. The steps make the copies; blocks change hands on both sides at once.
//
// Invariant: no sequence has a table on both sides.
//
// Ownership: owns the host tables and all of their references to host blocks. Borrows everything else: the
// tables on the device, which leave from there and return to there, are the block manager's. Not thread safe:
// owned by the block manager.

#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "coordinator/block_manager/block_manager_options.h"
#include "coordinator/block_manager/block_ops.h"
#include "coordinator/block_manager/block_pool.h"
#include "coordinator/block_manager/block_table.h"
#include "coordinator/block_manager/host_blocks.h"
#include "coordinator/block_manager/prefix_cache.h"
#include "coordinator/block_manager/watermark.h"

namespace somnus {

class SwappedSequences {
 public:
  SwappedSequences(const BlockManagerOptions& options, BlockPool* pool, BlockTables* tables,
                   PrefixCache* cache, HostBlocks* host, Watermark* watermark);
  SwappedSequences(const SwappedSequences&) = delete;

  // Returns in how many blocks the tokens of `sequences` are; a shared block counts once. SwapOut takes as
  // many host blocks.
  int32_t CountBlocks(absl::Span<const ComputedTokens> sequences) const;
  // Takes host blocks for the tokens of `sequences`, appends the copies into the host blocks, and releases
  // the tables on the device. HostBlocks::CanTake must have said kOk.
  void SwapOut(absl::Span<const ComputedTokens> sequences, std::vector<BlockCopyOp>* swap_outs);

  // A sequence that is about to have a table again, for all of `tokens`.
  struct Returning {
    int64_t sequence;
    absl::Span<const int32_t> tokens;
    absl::string_view salt;
    bool use_cache = false;   // adopt the tokens that the prefix cache has
    bool whole = false;       // of a beam: blocks of all tokens
    int64_t num_shared = 0;   // to be computed: leading tokens in blocks that another of the sequences fills
    int64_t num_adopted = 0;  // set by SwapIn: tokens that were found, maybe more than were swapped out
  };
  struct Room {
    int32_t missing = 0;  // how many more blocks are needed; 0 or less: there is room
    int32_t total = 0;    // how many blocks the sequences have then, a shared block once
  };
  // The blocks that all of these sequences need together. Suspended sequences already have tables; swapped
  // sequences have host blocks; all other sequences are computed again.
  Room RoomFor(absl::Span<const Returning> all, bool ignore_watermark);
  // Makes the tables of swapped sequences: adopts, takes blocks for the rest, and appends the copies of the
  // tokens that were swapped out and not found. The host blocks are released. All or nothing: after kLater
  // and kNever nothing has changed.
  AllocStatus SwapIn(absl::Span<Returning> all, bool ignore_watermark, std::vector<BlockCopyOp>* swap_ins);
  // Releases the host blocks of a swapped sequence, which is computed again or has ended.
  void Drop(int64_t sequence);
  // No content of a swapped sequence may enter the prefix cache any more.
  void ForgetContents();

  bool Has(int64_t sequence) const { return host_tables_.contains(sequence); }
  int32_t size() const { return static_cast<int32_t>(host_tables_.size()); }
  int32_t num_blocks() const { return num_blocks_; }  // host blocks, each once
  // The host blocks that steps may still swap in, of swapped sequences and of the prefix cache: each once, in
  // ascending order.
  std::vector<int32_t> Sources() const;

  // Internal names what does not add up. `taken` is by host block: the blocks that have another use.
  absl::Status CheckIntegrity(const std::vector<bool>& taken) const;

 private:
  // Whole blocks of the host that hold the computed tokens of a swapped sequence.
  static constexpr int32_t kNone = -1;
  struct HostTable {
    std::vector<int32_t> blocks;  // kNone: of a block that was given back
    int32_t num_given_back = 0;   // leading blocks
    bool is_forgotten = false;    // the contents may not enter the prefix cache any more
  };

  // Begins the table of a swapped sequence with the prefix cache's blocks behind the blocks that the sequence
  // has given back.
  BlockTable BeginSwapped(const Returning& one, const HostTable& host);
  // The size of the table once the sequence is back.
  int32_t SizeOf(const Returning& one, const HostTable& host, const BlockTable& table) const;
  // The blocks that a swapped sequence, whose table gets `size` blocks, needs beyond the adopted blocks,
  // which `table` has, and beyond the host blocks in `seen`, to which the sequence's host blocks are added.
  static int32_t NeededToSwapIn(const HostTable& host, const BlockTable& table, int32_t size,
                                absl::flat_hash_set<int32_t>* seen);
  // Takes these blocks. `came_back`: the device blocks for host blocks, which other sequences may have too.
  void FillFromHost(const HostTable& host, int32_t size, absl::flat_hash_map<int32_t, KvBlock*>* came_back,
                    BlockTable* table, std::vector<BlockCopyOp>* swap_ins);

  const BlockManagerOptions& options_;
  BlockPool& pool_;
  BlockTables& tables_;
  PrefixCache& cache_;
  HostBlocks& host_;
  Watermark& watermark_;
  absl::flat_hash_map<int64_t, HostTable> host_tables_;  // by swapped sequence
  int32_t num_blocks_ = 0;                               // in host_tables_, each once
};

}  // namespace somnus
