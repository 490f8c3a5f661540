#pragma once
// The start of tests of the block manager: tokens, and a small manager with a host tier.

#include <cstdint>
#include <numeric>
#include <vector>

#include "coordinator/block_manager/block_manager.h"

namespace somnus {

inline std::vector<int32_t> Tokens(int32_t count, int32_t first = 0) {
  std::vector<int32_t> tokens(count);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

// Blocks of 4 tokens, without a watermark.
inline BlockManagerOptions SmallBlocks(int32_t num_blocks, int32_t num_host_blocks) {
  BlockManagerOptions options;
  options.num_blocks = num_blocks;
  options.block_size = 4;
  options.watermark = 0;
  options.num_host_blocks = num_host_blocks;
  return options;
}

}  // namespace somnus
