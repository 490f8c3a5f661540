#pragma once
// What the block manager and its parts tell their callers of blocks. Values.

#include <cstdint>

namespace somnus {

enum class AllocStatus {
  kOk,
  kLater,  // not now: too few blocks are free
  kNever,  // more than the pool has without a limit
};

// A block whose contents must be copied before the step writes.
struct BlockCopyOp {
  int32_t src;
  int32_t dst;
};

}  // namespace somnus
