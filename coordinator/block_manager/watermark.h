#pragma once
// The watermark: the share of the device's blocks that admission leaves free, so that running sequences can
// grow without preempting each other; and how often the watermark has refused a sequence.
//
// Ownership: borrows the pool. Not thread safe: owned by the block manager.

#include <algorithm>
#include <cstdint>

#include "base/null_block.h"
#include "coordinator/block_manager/block_manager_options.h"
#include "coordinator/block_manager/block_ops.h"
#include "coordinator/block_manager/block_pool.h"

namespace somnus {

class Watermark {
 public:
  Watermark(const BlockManagerOptions& options, const BlockPool& pool)
      : share_(options.watermark), most_(TotalBlocks(options.num_blocks)), pool_(pool) {}

  // How many blocks stay free.
  int32_t height(bool ignored = false) const {
    return ignored ? 0 : static_cast<int32_t>(share_ * pool_.limit());
  }
  // Whether `needed` blocks can be taken.
  bool Allows(int32_t needed, bool ignored) const { return pool_.num_free() - needed >= height(ignored); }
  // Whether a sequence that has `num_had` blocks can have `num_blocks`. kNever: an empty pool could not hold
  // the sequence.
  AllocStatus Check(int32_t num_blocks, int32_t num_had, bool ignored) const {
    if (num_blocks > most_) return AllocStatus::kNever;
    return Allows(std::max(0, num_blocks - num_had), ignored) ? AllocStatus::kOk : AllocStatus::kLater;
  }
  // As Allows, where a sequence waits for the answer: a refusal for which the watermark alone is the reason
  // counts.
  bool Admits(int32_t needed, bool ignored) {
    if (Allows(needed, ignored)) return true;
    num_refusals_ += needed <= pool_.num_free() ? 1 : 0;
    return false;
  }
  // Returns how many more blocks have to be free before `needed` can be taken; 0 or less: none.
  int32_t Missing(int32_t needed, bool ignored) const { return needed + height(ignored) - pool_.num_free(); }
  int64_t num_refusals() const { return num_refusals_; }

 private:
  const double share_;
  const int64_t most_;  // blocks that sequences can have without a limit
  const BlockPool& pool_;
  int64_t num_refusals_ = 0;
};

}  // namespace somnus
