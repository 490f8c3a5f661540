#pragma once
// The common code of kernels over rows: vector stores, sums over a warp and a block, and the one kernel of
// all elementwise ops.

#include <cstdint>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/ptx.h"
#include "kernels/cuda/rows_plan.h"
#include "kernels/cuda_types.h"

namespace somnus::SOMNUS_CUDA_NAMESPACE {

// kWidth elements by one access of up to 16 bytes.
template <int kWidth, typename T>
__device__ inline Vec<T, kWidth> LoadWide(const T* from) {
  return LoadVec<T, kWidth>(from);
}

// A vector rounded to T, and stored by one access: pairs by the instruction that rounds two values.
template <typename T, int kWidth>
__device__ inline void StoreFloats(T* to, const float (&values)[kWidth]) {
  if constexpr (kWidth == 1 || sizeof(T) == 4) {
    Vec<T, kWidth> rounded;
#pragma unroll
    for (int j = 0; j < kWidth; ++j) rounded[j] = FromFloat<T>(values[j]);
    StoreVec(to, rounded);
  } else if constexpr (sizeof(T) == 2) {
    Vec<uint32_t, kWidth / 2> pairs;
#pragma unroll
    for (int j = 0; j < kWidth; j += 2) pairs[j / 2] = Pack2<T>(values[j], values[j + 1]);
    StoreVec(reinterpret_cast<uint32_t*>(to), pairs);
  } else {
    const auto pair = [&](int j) -> uint32_t {
      return std::is_same_v<T, i8> ? PackI8x2(values[j], values[j + 1]) : PackF8x2(values[j], values[j + 1]);
    };
    Vec<uint32_t, kWidth / 4> fours;
#pragma unroll
    for (int j = 0; j < kWidth; j += 4) fours[j / 4] = pair(j) | pair(j + 2) << 16;
    StoreVec(reinterpret_cast<uint32_t*>(to), fours);
  }
}

// Every lane of each group of `lanes` (a power of two) gets the group's sum. All 32 lanes must call.
__device__ inline float GroupSum(float value, int lanes) {
  return Butterfly(value, lanes / 2, [](float a, float b) { return a + b; });
}

// The same for the largest.
__device__ inline uint32_t GroupMax(uint32_t value, int lanes) {
  return Butterfly(value, lanes / 2, [](uint32_t a, uint32_t b) { return b > a ? b : a; });
}

// Every thread gets the sum over the block, added in an order that only depends on blockDim (a multiple of
// 32). `partials`: shared memory that no one uses until the next barrier.
__device__ inline float BlockSum(float value, float (&partials)[32]) {
  const int lane = threadIdx.x % kWarpThreads;
  value = GroupSum(value, kWarpThreads);
  if (lane == 0) partials[threadIdx.x / kWarpThreads] = value;
  __syncthreads();
  return GroupSum(lane < static_cast<int>(blockDim.x / kWarpThreads) ? partials[lane] : 0.0f, kWarpThreads);
}

// The arithmetic of RMSNorm, for every kernel with a norm: fused with a sum over ranks or not, a row has the
// same bits. A thread adds up the squares of its elements in order, the block as in BlockSum.
__device__ inline float AddSquare(float squares, float x) { return fmaf(x, x, squares); }
// `squares`: the thread's sum of squares of x or, in LayerNorm, of x - mean. `partials` as in BlockSum.
__device__ inline float NormScale(float squares, int cols, float eps, float (&partials)[32]) {
  return rsqrtf(BlockSum(squares, partials) / cols + eps);
}
__device__ inline float RmsNormed(float x, float scale, float weight) { return x * scale * weight; }

// Called by every thread before touching memory that other kernels read or write: this kernel was launched
// early, to hide its start (LaunchConfig::overlaps_previous), and lets the next kernel start as early.
__device__ inline void JoinStream() {
  GridDependencyLaunch();
  GridDependencyWait();
}

// An elementwise op is a struct of plain numbers with
//   kWidth                                     elements of a vector
//   Row At(int64_t row) computed once for a row
//   Loaded Load(const Row&, int col)           reads a vector
//   void Store(const Row&, int col, const Loaded&) Bound by memory, so each thread issues kUnroll loads
//   before it uses the first. Columns are int: with 64-bit columns nvcc 13.0 turns one store of the unrolled
//   loop into a store per word.
template <int kUnroll, typename Op>
__global__ void __launch_bounds__(256) ElementKernel(Op op, int cols, unsigned pieces) {
  JoinStream();
  const auto row = op.At(blockIdx.x / pieces);
  const int step = static_cast<int>(blockDim.x) * Op::kWidth;
  const int first =
      static_cast<int>(blockIdx.x % pieces) * kUnroll * step + static_cast<int>(threadIdx.x) * Op::kWidth;
  typename Op::Loaded loaded[kUnroll];
#pragma unroll
  for (int i = 0; i < kUnroll; ++i) {
    if (first + i * step < cols) loaded[i] = op.Load(row, first + i * step);
  }
#pragma unroll
  for (int i = 0; i < kUnroll; ++i) {
    if (first + i * step < cols) op.Store(row, first + i * step, loaded[i]);
  }
}

inline LaunchConfig RowsConfig(int64_t blocks, int threads, int64_t shared_bytes = 0) {
  return {.grid = dim3(static_cast<unsigned>(blocks)),
          .block = dim3(static_cast<unsigned>(threads)),
          .shared_bytes = shared_bytes,
          .overlaps_previous = true};
}

template <int kUnroll, typename Op>
void LaunchElements(CudaDevice& device, const Op& op, int64_t rows, int64_t cols) {
  const ElementPlan plan = PlanElements(rows, CeilDiv(cols, Op::kWidth), kUnroll, device.chip().num_sms);
  Launch(device, RowsConfig(rows * plan.pieces, plan.threads), ElementKernel<kUnroll, Op>, op,
         static_cast<int>(cols), static_cast<unsigned>(plan.pieces));
}

}  // namespace somnus::SOMNUS_CUDA_NAMESPACE
