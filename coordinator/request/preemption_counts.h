#pragma once
// Why running sequences were preempted, and how: by swap, with their blocks in host memory, or by recompute,
// without.

#include <array>
#include <cstddef>
#include <cstdint>

namespace somnus {

enum class PreemptionCause {
  kNoBlocks,  // running sequences needed blocks
  kPriority,  // a more urgent sequence took the place
  kReset,  // what was computed was given up: a sleep that does not keep it, a pause or a call that clears it
  kFailure,  // of the group, or of another sequence whose blocks were shared
};
inline constexpr std::array<const char*, 4> kPreemptionCauses = {"no_blocks", "priority", "reset", "failure"};

struct PreemptionCounts {
  std::array<int64_t, kPreemptionCauses.size()> by_swap = {};
  std::array<int64_t, kPreemptionCauses.size()> by_recompute = {};

  void Add(PreemptionCause cause, bool swaps) {
    ++(swaps ? by_swap : by_recompute)[static_cast<size_t>(cause)];
  }
  void Add(const PreemptionCounts& other) {
    for (size_t i = 0; i < kPreemptionCauses.size(); ++i) {
      by_swap[i] += other.by_swap[i];
      by_recompute[i] += other.by_recompute[i];
    }
  }
  int64_t total() const {
    int64_t sum = 0;
    for (size_t i = 0; i < kPreemptionCauses.size(); ++i) sum += by_swap[i] + by_recompute[i];
    return sum;
  }
};

}  // namespace somnus
