#pragma once
// Why running sequences were preempted, and how: by swap, which keeps their blocks in host memory, or by
// recompute, which drops them.

#include <array>
#include <cstddef>
#include <cstdint>

namespace somnus {

enum class PreemptionCause {
  kNoBlocks,  // running sequences needed blocks
  kPriority,  // a more urgent sequence took the place
  kReset,     // computed blocks were given up: a sleep that does not keep them, a pause or a call that clears
              // them
  kFailure,   // of the group, or of a sequence that shared blocks
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

// Why a preempted sequence (or the choices of a request together, or a beam search) was not swapped out
// although swapping is on and other sequences needed the blocks. The sequence is computed again.
enum class SwapObstacle {
  kNone,
  kHostFull,    // the host tier has too few free blocks
  kHostMemory,  // a rank's host had no memory for the blocks, now or not long ago
  kStepFull,    // the step would swap too many blocks, or swaps other blocks in
  kPrice,       // computing again is cheaper, or no price is known yet
};
inline constexpr std::array<const char*, 5> kSwapObstacles = {"none", "host_full", "host_memory", "step_full",
                                                              "price"};

struct SwapCounts {
  int64_t out_blocks = 0;
  int64_t in_blocks = 0;
  int64_t in_tokens = 0;          // that were not computed again
  int64_t stored_blocks = 0;      // among out_blocks: of the prefix cache
  int64_t evicted_blocks = 0;     // cached blocks that gave way to other blocks in host memory
  int64_t host_hit_tokens = 0;    // of prompts: blocks of these tokens came back from host memory
  int64_t host_query_tokens = 0;  // of prompts: looked up in host memory, because the device lacked them
  int64_t refusals = 0;           // steps with swap_outs that a rank had no memory for
  std::array<int64_t, kSwapObstacles.size()> obstacles = {};  // preemptions

  void Add(const SwapCounts& other) {
    out_blocks += other.out_blocks;
    in_blocks += other.in_blocks;
    in_tokens += other.in_tokens;
    stored_blocks += other.stored_blocks;
    evicted_blocks += other.evicted_blocks;
    host_hit_tokens += other.host_hit_tokens;
    host_query_tokens += other.host_query_tokens;
    refusals += other.refusals;
    for (size_t i = 0; i < kSwapObstacles.size(); ++i) obstacles[i] += other.obstacles[i];
  }
};

}  // namespace somnus
