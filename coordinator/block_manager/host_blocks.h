#pragma once
// The blocks of the host tier, which is the memory behind the device's blocks, and the rule of who gets a
// block.
//
// A host block has one of three uses. The block is in the table of a sequence that is swapped out
// (swapped_sequences.h), or holds a device block's contents while the KV cache sleeps (kept_blocks.h), or is
// in the second level of the prefix cache (host_prefix_cache.h). Cached blocks give way to the two other
// uses.
//
// The copies themselves are made by steps, which workers execute in order. So a host block may be given out
// again as soon as the step that reads the block has been sent.
//
// Ownership: owns the pool of host blocks and the cache in the pool; a part that takes a block for another
// use releases the block in the pool. Not thread safe: owned by the block manager.

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "coordinator/block_manager/block_events.h"
#include "coordinator/block_manager/block_ops.h"
#include "coordinator/block_manager/block_pool.h"
#include "coordinator/block_manager/host_block_pool.h"
#include "coordinator/block_manager/host_prefix_cache.h"

namespace somnus {

class HostBlocks {
 public:
  // The recorder of events is borrowed, and may be null.
  HostBlocks(int32_t num_blocks, BlockEventRecorder* recorder)
      : pool_(num_blocks), cache_(&pool_, recorder) {}
  HostBlocks(const HostBlocks&) = delete;

  // Whether `num_blocks` host blocks can be taken; kNever: not even an empty tier has as many.
  AllocStatus CanTake(int32_t num_blocks) const;
  // Takes a host block, for which the least recently used cached block gives way where none is free. The
  // caller owns the one reference to the block. CanTake must say kOk.
  int32_t Take();
  // How many blocks can be taken, and how many are in use but for cached blocks.
  int32_t num_available() const { return pool_.num_free() + cache_.size(); }
  int32_t num_taken() const { return pool_.num_used() - cache_.size(); }
  // Drops cached blocks until no more than `limit` host blocks are in use, or no block is cached.
  void EvictDownTo(int64_t limit);

  HostPrefixCache* mutable_cache() { return &cache_; }
  const HostPrefixCache& cache() const { return cache_; }
  // Stores up to `count` of the device's cached blocks that are not stored yet, in that order. Appends the
  // copies, and returns the contents' ids.
  std::vector<uint64_t> Store(absl::Span<const KvBlock* const> cached, int32_t count, int64_t step,
                              std::vector<BlockCopyOp>* swap_outs);

  // For further references beside the reference that Take gives, and for releases.
  HostBlockPool* mutable_pool() { return &pool_; }
  const HostBlockPool& pool() const { return pool_; }

  // Internal names what does not add up. Marks the cached blocks in `taken`, which has an entry for each host
  // block.
  absl::Status CheckIntegrity(std::vector<bool>* taken) const;

 private:
  HostBlockPool pool_;
  HostPrefixCache cache_;
};

}  // namespace somnus
