#pragma once
// How ops over rows are cut into vectors and thread blocks. Plain numbers: no CUDA here.

#include <algorithm>
#include <cstdint>
#include <initializer_list>

#include "kernels/tensor.h"

namespace somnus {

inline constexpr int kWarpThreads = 32;

constexpr int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }
constexpr int64_t RoundUpTo(int64_t a, int64_t b) { return CeilDiv(a, b) * b; }

inline bool IsAlignedTo(const void* pointer, int64_t bytes) {
  return reinterpret_cast<uintptr_t>(pointer) % static_cast<uintptr_t>(bytes) == 0;
}

// Returns whether every row of every view, and column `cols`, starts where a vector of `width` elements may.
inline bool TakesVectors(int64_t width, int64_t cols, std::initializer_list<TensorView> views) {
  return cols % width == 0 && std::all_of(views.begin(), views.end(), [&](const TensorView& view) {
           return IsAlignedTo(view.data, width * SizeOf(view.dtype)) &&
                  (view.stride % width == 0 || view.rows == 1);
         });
}

// Elementwise ops: a block takes a piece of one row, a thread `unroll` vectors that are a block's width
// apart. Block b is piece b % pieces of row b / pieces.
struct ElementPlan {
  int threads = 0;
  int64_t pieces = 0;  // of a row
};

// Blocks of 256 threads when there are rows enough to fill the chip; else of 64, so that one row reaches
// several multiprocessors.
inline ElementPlan PlanElements(int64_t rows, int64_t vectors_per_row, int unroll, int num_sms) {
  const int64_t threads_per_row = CeilDiv(vectors_per_row, unroll);
  const int64_t most = rows * CeilDiv(threads_per_row, 256) >= num_sms ? 256 : 64;
  const int64_t pieces = CeilDiv(threads_per_row, most);
  return {static_cast<int>(RoundUpTo(CeilDiv(threads_per_row, pieces), kWarpThreads)), pieces};
}

// Norms: a block takes one row and keeps it in registers, `per_thread` vectors of 4 a thread; 0 when the row
// is too long or not aligned, and is read again instead. By the width alone: a row's sum is added in the same
// order in any batch.
struct NormPlan {
  int threads = 0;
  int per_thread = 0;  // 0, 2, 4 or 8
};

inline constexpr int64_t kNormThreads = 512;

inline NormPlan PlanNorm(int64_t cols, bool vectors) {
  if (vectors) {
    for (const int per_thread : {2, 4, 8}) {
      const int64_t threads = CeilDiv(cols / 4, per_thread);
      if (threads <= kNormThreads) return {static_cast<int>(RoundUpTo(threads, kWarpThreads)), per_thread};
    }
  }
  return {static_cast<int>(RoundUpTo(std::min(cols, kNormThreads), kWarpThreads)), 0};
}

// Rotary embedding: `lanes` neighbouring threads take one head of one token, each thread a vector of `width`
// in the head's first half and the partner in the second. width 0: a warp takes a head, element by element.
struct HeadPlan {
  int width = 0;
  int lanes = kWarpThreads;  // a power of two, at most a warp
  int threads = 0;           // of a block
  int64_t blocks_per_token = 0;
};

inline HeadPlan PlanHeads(int64_t heads, int64_t head_dim, int64_t element_bytes, bool aligned) {
  HeadPlan plan;
  const int64_t width = 16 / element_bytes, half = head_dim / 2;
  if (aligned && head_dim % 2 == 0 && half % width == 0 && half / width <= kWarpThreads) {
    plan.width = static_cast<int>(width);
    plan.lanes = 1;
    while (plan.lanes * width < half) plan.lanes *= 2;
  }
  plan.threads = static_cast<int>(std::min<int64_t>(128, RoundUpTo(heads * plan.lanes, kWarpThreads)));
  plan.blocks_per_token = CeilDiv(heads * plan.lanes, plan.threads);
  return plan;
}

// Block copies: a block of threads takes a piece of one layer's block, `kCopyUnroll` words a thread at once.
struct CopyPlan {
  int64_t word = 0;   // bytes: 16 or 1
  int64_t words = 0;  // of a cache block
  int threads = 0;
  int64_t pieces = 0;  // of a cache block
};

inline constexpr int kCopyUnroll = 4;

inline CopyPlan PlanCopy(int64_t block_bytes, bool aligned) {
  CopyPlan plan;
  plan.word = aligned && block_bytes % 16 == 0 ? 16 : 1;
  plan.words = block_bytes / plan.word;
  plan.threads =
      static_cast<int>(std::min<int64_t>(256, RoundUpTo(CeilDiv(plan.words, kCopyUnroll), kWarpThreads)));
  plan.pieces = CeilDiv(plan.words, int64_t{plan.threads} * kCopyUnroll);
  return plan;
}

}  // namespace somnus
