#pragma once
// Measures how long blocks of the KV cache keep their contents, on a sample of the blocks: each block that is
// allocated belongs to the sample with a fixed probability, as in vLLM (v1/core/kv_cache_metrics.py).
//
// The sample and the clock are for measurements alone: the books of blocks do not depend on either, so that
// the same arrivals give the same schedule. Owned by the block manager; not thread safe.

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "base/monotonic.h"
#include "coordinator/block_manager/block_stay.h"

namespace somnus {

class BlockResidency {
 public:
  // `sample_rate`: from 0 to 1.
  BlockResidency(double sample_rate, MonotonicClock now) : sample_rate_(sample_rate), now_(std::move(now)) {}

  // A sequence gets the block. `was_cached`: the block gives up contents that could have been adopted.
  void NoteAllocated(int32_t id, bool was_cached);
  // A sequence adopts the block's contents.
  void NoteAccess(int32_t id);
  // Returns the stays that have ended since the last call, at most kMaxStays: the first stays.
  std::vector<BlockStay> Take() { return std::exchange(ended_, {}); }

  static constexpr size_t kMaxStays = 4096;

 private:
  static constexpr size_t kMaxAccesses = 4;  // that are kept of a block

  struct Sampled {
    MonotonicTime begin;
    std::vector<MonotonicTime> accesses;  // the last accesses, in order
  };
  bool IsSampled();
  void NoteEnd(const Sampled& sampled);

  const double sample_rate_;
  const MonotonicClock now_;
  uint64_t random_ = 0x9e3779b97f4a7c15;          // the state of IsSampled's generator
  absl::flat_hash_map<int32_t, Sampled> blocks_;  // by id; at most as many as there are blocks
  std::vector<BlockStay> ended_;
};

}  // namespace somnus
