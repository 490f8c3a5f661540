#pragma once
// The block copies that forks and branching beams need, until a step makes them: the last, partly filled
// block of a fork is a copy of its source's.
//
// A step makes its swaps first, then these copies, and computes after both. Owned by the Scheduler; not
// thread safe.

#include <algorithm>
#include <cstdint>
#include <vector>

#include "coordinator/block_manager/block_manager.h"
#include "proto/worker.pb.h"

namespace somnus {

class ForkCopies {
 public:
  // Where SharedBlocks appends copies.
  std::vector<BlockCopyOp>* mutable_copies() { return &copies_; }

  // Where the contents that belong into `block` are until the copies are made.
  int32_t PresentPlace(int32_t block) const {
    for (auto copy = copies_.rbegin(); copy != copies_.rend(); ++copy) {
      if (copy->dst == block) block = copy->src;
    }
    return block;
  }
  // Forgets copies into blocks that are not used any more. Returns whether a swap-in, which takes free blocks
  // and comes before the copies, leaves the blocks of the copies alone.
  bool AreApart(const BlockManager& blocks) {
    std::erase_if(copies_, [&](const BlockCopyOp& copy) { return !blocks.pool().is_used(copy.dst); });
    return std::all_of(copies_.begin(), copies_.end(),
                       [&](const BlockCopyOp& copy) { return blocks.pool().is_used(copy.src); });
  }

  // Moves the copies into the step's message. Returns how many there were.
  int64_t Send(v1::StepRequest* request) {
    for (const BlockCopyOp& copy : copies_) {
      v1::BlockCopy* message = request->add_copies();
      message->set_src(copy.src);
      message->set_dst(copy.dst);
    }
    const auto count = static_cast<int64_t>(copies_.size());
    copies_.clear();
    return count;
  }
  void Clear() { copies_.clear(); }

 private:
  std::vector<BlockCopyOp> copies_;
};

}  // namespace somnus
