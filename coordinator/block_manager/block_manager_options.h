#pragma once
// The size and the rules of a KV cache as the coordinator keeps the cache's books. Values.

#include <cstdint>

#include "base/monotonic.h"

namespace somnus {

struct BlockManagerOptions {
  int32_t num_blocks = 0;  // counts the null block
  int32_t block_size = 16;
  bool enable_prefix_caching = true;
  // With attention_reach: the number of lost cached blocks whose tokens the prefix cache keeps, about 250
  // bytes for each (passed_contents.h). A beginning of at most so many blocks is found by its last blocks.
  int32_t max_passed_contents = 1 << 16;
  // The share of the blocks that admission leaves free, so that running sequences can grow.
  double watermark = 0.01;
  int32_t num_host_blocks = 0;  // of the host tier; 0: there is none
  // How many tokens of a sequence a step computes at most; 0: any number. With a reach and this bound a
  // sequence takes the blocks of a long prompt step by step, as WindowBlocks says. The Scheduler sets this
  // bound.
  int32_t max_step_tokens = 0;
  // How many tokens a query attends at most in any layer, the query's own token included: the widest window
  // of the model. 0: all tokens, as in every model that has a layer without a window. With a reach a running
  // sequence gives back the blocks that no later query attends.
  int64_t attention_reach = 0;
  bool records_events = false;  // of the prefix cache, which PrefixCache::TakeEvents returns
  // The share of the blocks whose stay in the cache is measured (block_residency.h), by that clock; 0: none.
  double residency_sample = 0;
  MonotonicClock residency_clock = MonotonicNow;
};

// The most blocks that a sequence has at once, where queries attend the last `reach` tokens with their own,
// and a step computes at most `step_tokens` of the sequence's tokens. The computed tokens, and the tokens
// that the first computed token attends, may begin and end within a block. A further block is for tokens that
// the coordinator does not know yet.
constexpr int64_t WindowBlocks(int64_t reach, int64_t step_tokens, int32_t block_size) {
  return (reach + step_tokens + block_size - 3) / block_size + 2;
}

}  // namespace somnus
