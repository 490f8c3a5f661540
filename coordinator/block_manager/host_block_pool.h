#pragma once
// The blocks of the host tier in the coordinator's books: which blocks are in use. Every worker has host
// memory for as many blocks of its KV cache, with the same ids, from 0 on. There is one pool for all features
// that move blocks to the host. A block may have several owners, and is in use until the last owner releases
// the block.
//
// Not thread safe: owned by the engine's loop.

#include <cstdint>
#include <vector>

#include "absl/status/status.h"

namespace somnus {

class HostBlockPool {
 public:
  explicit HostBlockPool(int32_t num_blocks);

  // Takes the free block that was given back last, or, where no block was given back, the block with the
  // lowest id. The pool must not be exhausted.
  int32_t Allocate();
  void Reference(int32_t id);
  // Returns whether the block is free now.
  bool Release(int32_t id);

  int32_t num_total() const { return static_cast<int32_t>(ref_counts_.size()); }
  int32_t num_free() const { return static_cast<int32_t>(free_.size()); }
  int32_t num_used() const { return num_total() - num_free(); }
  int32_t ref_count(int32_t id) const { return id >= 0 && id < num_total() ? ref_counts_[id] : 0; }
  bool is_used(int32_t id) const { return ref_count(id) > 0; }

  // Walks over all blocks. Internal names what does not add up.
  absl::Status CheckIntegrity() const;

 private:
  std::vector<int32_t> free_;  // a stack
  std::vector<int32_t> ref_counts_;
};

}  // namespace somnus
