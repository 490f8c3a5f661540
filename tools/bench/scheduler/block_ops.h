#pragma once
// The cost of an operation on a block in the block manager, by the number of blocks.

#include <cstdint>

namespace somnus {

// Nanoseconds for each block, medians of batches.
struct BlockOpTimes {
  double allocate = 0;  // of a pool whose free blocks are all cached: each new block displaces cached
                        // contents
  double free = 0;
  double touch = 0;  // a cached block of random id, as a prefix hit does; the block's release counts as a
                     // second operation
  double fork = 0;   // of a table whose blocks are used; the release counts as a second operation

  double mean() const { return (allocate + free + touch + fork) / 4; }
};

// Takes a few hundred milliseconds. `num_blocks` is at least 64; `rounds` batches are measured of each.
BlockOpTimes MeasureBlockOps(int32_t num_blocks, int32_t rounds);

}  // namespace somnus
