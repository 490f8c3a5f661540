#pragma once
// Block 0 of every KV cache, the null block: rows that pad a step write there, and no sequence ever holds
// this block.
//
// One rule for all counts of blocks: `num_blocks` is the size of a cache with the null block, which takes
// memory like every block, so ids are below num_blocks. `total_blocks` is the number of blocks that sequences
// can hold; status, metrics and logs show this number.

#include <cstdint>

namespace somnus {

inline constexpr int32_t kNullBlock = 0;

// The total_blocks of a cache of `num_blocks`, which must be at least 1.
constexpr int64_t TotalBlocks(int64_t num_blocks) { return num_blocks - 1; }
// The num_blocks of a cache in which sequences can hold `total_blocks`.
constexpr int64_t NumBlocks(int64_t total_blocks) { return total_blocks + 1; }

}  // namespace somnus
