#pragma once
// Whether the books of the block manager's parts agree: every reference to a block belongs to a table or to a
// pin, and every taken host block to a kept or to a swapped block.
//
// CheckAll looks at everything. CheckNext goes through the blocks in turns, for an engine whose requests may
// come meanwhile, and remembers where the next turn begins.
//
// Ownership: borrows all parts, and changes none. Not thread safe: owned by the block manager.

#include <cstdint>

#include "absl/status/status.h"
#include "coordinator/block_manager/block_pool.h"
#include "coordinator/block_manager/block_table.h"
#include "coordinator/block_manager/host_blocks.h"
#include "coordinator/block_manager/kept_blocks.h"
#include "coordinator/block_manager/prefix_pins.h"
#include "coordinator/block_manager/swapped_sequences.h"

namespace somnus {

class BlockAudit {
 public:
  BlockAudit(int32_t num_blocks, const BlockPool& pool, const BlockTables& tables, const PrefixPins& pins,
             const HostBlocks& host, const SwappedSequences& swapped, const KeptBlocks& kept)
      : num_blocks_(num_blocks),
        pool_(pool),
        tables_(tables),
        pins_(pins),
        host_(host),
        swapped_(swapped),
        kept_(kept) {}
  BlockAudit(const BlockAudit&) = delete;

  // BlockManager::CheckIntegrity.
  absl::Status CheckAll() const;
  // BlockManager::CheckNextBlocks, of `count` blocks.
  absl::Status CheckNext(int32_t count);

 private:
  absl::Status CheckReferences() const;
  // While no sequence has a table, pins alone have the blocks from `first` up to `end`.
  absl::Status CheckPinned(int32_t first, int32_t end) const;
  absl::Status CheckHostCounts() const;

  const int32_t num_blocks_;
  const BlockPool& pool_;
  const BlockTables& tables_;
  const PrefixPins& pins_;
  const HostBlocks& host_;
  const SwappedSequences& swapped_;
  const KeptBlocks& kept_;
  int32_t next_ = 0;  // the block that CheckNext begins with
};

}  // namespace somnus
