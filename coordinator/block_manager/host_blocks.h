#pragma once
// The contents of the KV cache that are in host memory, the tier behind the device's blocks: which host block
// holds what.
//
// A host block has one of three uses. It is in the table of a sequence that is swapped out; or in the second
// level of the prefix cache (host_prefix_cache.h); or it holds a device block's contents while the KV cache
// sleeps (kept). Cached blocks give way to the two other uses.
//
// The copies themselves are made by steps, which workers execute in order. So a host block may be given out
// again as soon as the step that reads it has been sent.
//
// Ownership: owns the pool of host blocks and all references to them. Device blocks and tables are the block
// manager's, which owns this object. Not thread safe: the engine's loop alone uses it.

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "coordinator/block_manager/block_events.h"
#include "coordinator/block_manager/block_ops.h"
#include "coordinator/block_manager/block_pool.h"
#include "coordinator/block_manager/host_block_pool.h"
#include "coordinator/block_manager/host_prefix_cache.h"
#include "coordinator/block_manager/kept_block.h"

namespace somnus {

class HostBlocks {
 public:
  // The host blocks of a swapped sequence: whole blocks that hold its computed tokens.
  struct Table {
    std::vector<int32_t> blocks;
    bool is_forgotten = false;  // the contents may not enter the prefix cache any more
  };
  // A sequence that leaves the device.
  struct Leaving {
    int64_t sequence;
    absl::Span<KvBlock* const> blocks;
    bool is_forgotten;  // as in Table
  };

  // The recorder of events is borrowed, and may be null.
  HostBlocks(int32_t num_blocks, BlockEventRecorder* recorder)
      : pool_(num_blocks), cache_(&pool_, recorder) {}
  HostBlocks(const HostBlocks&) = delete;

  // Whether `num_blocks` host blocks can be taken; kNever: not even an empty tier has as many.
  AllocStatus CanTake(int32_t num_blocks) const;

  // Gives host blocks to sequences that leave together, and appends the copies to `swap_outs`. A device block
  // that several of the sequences share becomes one host block. CanTake must have said kOk.
  void SwapOut(absl::Span<const Leaving> sequences, std::vector<BlockCopyOp>* swap_outs);
  // Releases the host blocks of a swapped sequence, which must be one.
  void Drop(int64_t sequence);
  // Null for a sequence that is not swapped out.
  const Table* Find(int64_t sequence) const;
  const absl::flat_hash_map<int64_t, Table>& tables() const { return tables_; }
  int32_t num_swapped_blocks() const { return num_swapped_blocks_; }
  // The host blocks that steps may still swap in, of swapped sequences and of the prefix cache: each once, in
  // ascending order.
  std::vector<int32_t> SwappedBlocks() const;
  // No content of a swapped sequence may enter the prefix cache any more.
  void ForgetContents();

  // The prefix cache in the host tier.
  HostPrefixCache* mutable_cache() { return &cache_; }
  const HostPrefixCache& cache() const { return cache_; }
  // Stores up to `count` of the device's cached blocks that are not stored yet, in that order. Appends the
  // copies, and returns the contents' ids.
  std::vector<uint64_t> Store(absl::Span<const KvBlock* const> cached, int32_t count, int64_t step,
                              std::vector<BlockCopyOp>* swap_outs);

  // Blocks that outlive a sleep of the cache. How many more blocks may be kept under that limit.
  int64_t RoomToKeep(int64_t limit) const;
  // Takes a host block for a device block, unless the device block is kept already. There must be room.
  void Keep(int32_t device_block);
  bool Keeps(int32_t device_block) const { return kept_ids_.contains(device_block); }
  // Drops cached blocks until no more than `limit` host blocks are in use, as far as cached ones reach.
  void EvictDownTo(int64_t limit);
  void ReleaseKept();
  const std::vector<KeptBlock>& kept() const { return kept_; }

  const HostBlockPool& pool() const { return pool_; }
  // Internal unless the host blocks in use are as many as those kept, swapped out and cached.
  absl::Status CheckCounts() const;
  // Internal names what does not add up. `num_device_blocks` counts the null block.
  absl::Status CheckIntegrity(int32_t num_device_blocks) const;

 private:
  // Takes a host block, for which the least recently used cached one gives way where none is free.
  int32_t Take();
  // Marks the host blocks in `on_host`, which has an entry for each, as kept.
  absl::Status CheckKept(int32_t num_device_blocks, std::vector<bool>* on_host) const;

  HostBlockPool pool_;
  HostPrefixCache cache_;
  absl::flat_hash_map<int64_t, Table> tables_;  // by swapped sequence
  int32_t num_swapped_blocks_ = 0;              // in tables_, each once
  std::vector<KeptBlock> kept_;
  absl::flat_hash_set<int32_t> kept_ids_;  // the device blocks in kept_
};

}  // namespace somnus
