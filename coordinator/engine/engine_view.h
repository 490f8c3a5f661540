#pragma once
// A picture of one engine loop for people who watch: the first open requests, and who holds which block of
// the KV cache. Plain values.
//
// Bounded: EngineOptions::max_viewed_requests requests, kMaxViewedBlocks cells.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "base/monotonic.h"

namespace somnus {

inline constexpr int32_t kMaxViewedBlocks = 4096;

struct RequestView {
  std::string id;          // as the client knows the request
  const char* state = "";  // "running", "waiting", "preempted", "suspended" or "swapped"
  absl::Time arrival;
  int64_t num_prompt_tokens = 0;
  int64_t num_computed_tokens = 0;
  int64_t num_output_tokens = 0;
  int64_t num_blocks = 0;  // with the blocks that the sequence has given back
  int32_t num_preemptions = 0;
};

struct EngineView {
  MonotonicTime taken;
  int32_t replica = 0;
  // A letter for each block, or for one block of blocks_per_cell, in the order of ids, without the null
  // block:
  // '.' free, 'c' free with cached contents, '1' to '9' so many holders, '+' more, 'x' out of use.
  std::string blocks;
  int32_t blocks_per_cell = 1;
  std::vector<RequestView> requests;  // in the order of service, running requests first
  int32_t max_requests = 0;           // so many at most
};

// EngineView::replica of the picture of a queue that replicas have in common: its requests are in no loop
// yet, and it has no blocks.
inline constexpr int32_t kCommonQueue = -1;

// The pictures of all loops of an engine, and of the common queue behind them. A loop that has not drawn a
// picture yet is left out.
using EngineViews = std::vector<std::shared_ptr<const EngineView>>;

}  // namespace somnus
