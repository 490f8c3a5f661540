#pragma once
// Blocks of the KV cache that outlive a sleep of the cache, in the host tier.
//
// The choice is made before the sleep. The choice takes host blocks, for which cached blocks there give way,
// and changes nothing else. Once the sleep has happened, all contents that were not chosen are forgotten. The
// host blocks are released when the contents are on the device again, at the same device blocks, or are not
// wanted any more.
//
// Invariant: between the choice and the release no device block may be allocated.
//
// Ownership: owns the choice and the host blocks in it; borrows everything else. Not thread safe: owned by
// the block manager.

#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "coordinator/block_manager/block_manager_options.h"
#include "coordinator/block_manager/block_pool.h"
#include "coordinator/block_manager/block_table.h"
#include "coordinator/block_manager/host_blocks.h"
#include "coordinator/block_manager/kept_block.h"
#include "coordinator/block_manager/prefix_cache.h"
#include "coordinator/block_manager/prefix_pins.h"

namespace somnus {

class KeptBlocks {
 public:
  KeptBlocks(const BlockManagerOptions& options, const BlockPool& pool, const BlockTables& tables,
             const PrefixPins& pins, PrefixCache* cache, HostBlocks* host)
      : options_(options), pool_(pool), tables_(tables), pins_(pins), cache_(*cache), host_(*host) {}
  KeptBlocks(const KeptBlocks&) = delete;

  // Chooses the blocks that hold the tokens of `sequences`, all blocks of a sequence or none, in this order.
  // Returns the sequences for which there is no room, in the host tier or within `limits`. The room that is
  // left goes to the beginnings of these sequences, as far as the beginnings can be adopted, then to pinned
  // blocks, and then to cached blocks, the most recently used first. Nothing may have been chosen since the
  // last release.
  std::vector<int64_t> Choose(absl::Span<const ComputedTokens> sequences, const KeepLimits& limits = {});
  // The sleep has happened: forgets the contents of all other blocks. Only chosen sequences may still have
  // tables.
  void ForgetOthers();
  void Release();

  const std::vector<KeptBlock>& blocks() const { return blocks_; }

  // Internal names what does not add up. Marks the host blocks of the choice in `taken`, which has an entry
  // for each host block.
  absl::Status CheckIntegrity(std::vector<bool>* taken) const;

 private:
  // How many more blocks may be kept under that limit for all blocks that are in the host's memory.
  int64_t Room(int64_t limit) const;
  // Takes a host block for a device block, unless the device block is kept already. There must be room.
  void Keep(int32_t device_block);
  // Gives the room that is left to cached contents, in the order that Choose names.
  void KeepCached(absl::Span<const int64_t> without_room, const KeepLimits& limits);

  const BlockManagerOptions& options_;
  const BlockPool& pool_;
  const BlockTables& tables_;
  const PrefixPins& pins_;
  PrefixCache& cache_;
  HostBlocks& host_;
  std::vector<KeptBlock> blocks_;
  absl::flat_hash_set<int32_t> ids_;  // the device blocks in blocks_
};

}  // namespace somnus
