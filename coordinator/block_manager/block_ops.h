#pragma once
// The answers of the block manager and its parts about blocks. Values.

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

// How many blocks hold `num_tokens` tokens.
constexpr int32_t BlocksFor(int64_t num_tokens, int32_t block_size) {
  return static_cast<int32_t>((num_tokens + block_size - 1) / block_size);
}

}  // namespace somnus
