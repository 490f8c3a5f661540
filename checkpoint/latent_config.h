#pragma once
// The sizes of latent attention (MLA; DeepSeek V2, arXiv 2405.04434, section 2.1).

#include <cstdint>

namespace somnus {

// Plain data. All heads share the cache, which has a single row for each token and layer: a latent vector of
// `rank` numbers, then the `rope` dimensions of a key that have a position.
struct LatentConfig {
  int32_t rank = 0;         // kv_lora_rank; 0: the model has queries, keys and values of heads
  int32_t query_rank = 0;   // q_lora_rank; 0: a single matrix makes the queries
  int32_t nope = 0;         // dimensions of a head's query and key without a position
  int32_t rope = 0;         // dimensions of a head's query and key with a position
  int32_t value = 0;        // dimensions of a head's value
  bool interleaved = true;  // neighbours rotate together

  bool operator==(const LatentConfig&) const = default;
};

}  // namespace somnus
