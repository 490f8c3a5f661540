#pragma once
// The size and the rules of a KV cache as the coordinator keeps the cache's books. Values.

#include <cstdint>

#include "base/monotonic.h"

namespace somnus {

struct BlockManagerOptions {
  int32_t num_blocks = 0;  // counts the null block
  int32_t block_size = 16;
  bool enable_prefix_caching = true;
  // The share of the blocks that admission leaves free, so that running sequences can grow.
  double watermark = 0.01;
  int32_t num_host_blocks = 0;  // of the host tier; 0: there is none
  // How many tokens a query attends at most in any layer, with its own: the widest window of the model. 0:
  // all tokens, as in every model that has a layer without a window. With a reach a sequence gives back,
  // while it runs, the blocks that no later query attends.
  int64_t attention_reach = 0;
  bool records_events = false;  // of the prefix cache, which PrefixCache::TakeEvents returns
  // The share of the blocks whose stay in the cache is measured (block_residency.h), by that clock; 0: none.
  double residency_sample = 0;
  MonotonicClock residency_clock = MonotonicNow;
};

}  // namespace somnus
