#pragma once
// The scales of an i8 cache on their way through shared memory: f32, each in the pitch of a tile, right
// behind its token's row. Internal to attention*.cu.

#include "kernels/cuda/attention_params.h"
#include "kernels/cuda/ptx.h"

namespace somnus::SOMNUS_CUDA_NAMESPACE {

// The distance between the scales of successive tokens of a tile.
template <int kDims>
constexpr int kScalePitch = static_cast<int>(TilePitch(kDims, sizeof(i8)));

// Queues the copy of the scales of rows [0, kRows) of a tile of K or of V by kThreads threads; scales of rows
// that are not valid become zeros. scale(i): the place of row i's scale in the cache; called for valid rows
// only. `anywhere`: any address in the cache.
template <int kDims, int kRows, int kThreads, typename Valid, typename Scale>
__device__ inline void CopyScales(char* tile, int thread, const Valid& valid, const void* anywhere,
                                  const Scale& scale) {
#pragma unroll
  for (int i = 0; i < (kRows + kThreads - 1) / kThreads; ++i) {
    const int row = thread + i * kThreads;
    if (kRows % kThreads != 0 && row >= kRows) break;
    const bool there = valid.Has(row);
    CpAsync4(tile + row * kScalePitch<kDims> + kDims,
             there ? static_cast<const void*>(scale(static_cast<unsigned>(row))) : anywhere, there);
  }
}

// Multiplies fragments of scores or weights by the scales of their tokens.
template <int kDims, int kFragments, int kGroups>
__device__ inline void MultiplyByScales(const char* tile, float (&s)[kGroups][kFragments][4]) {
  const char* const from = tile + 2 * (LaneId() % 4) * kScalePitch<kDims> + kDims;
#pragma unroll
  for (int n = 0; n < kFragments; ++n) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float scale = *reinterpret_cast<const float*>(from + (8 * n + i) * kScalePitch<kDims>);
#pragma unroll
      for (int m = 0; m < kGroups; ++m) {
        s[m][n][i] *= scale;
        s[m][n][2 + i] *= scale;
      }
    }
  }
}

}  // namespace somnus::SOMNUS_CUDA_NAMESPACE
