#pragma once
// The common code of kernels over rows of logits: a chunk's values in registers, comparable keys, reductions
// over a block, and the workspace.

#include <cstdint>
#include <limits>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/ptx.h"
#include "kernels/cuda/sampling_plan.h"
#include "kernels/cuda_types.h"
#include "kernels/ops.h"
#include "kernels/tensor.h"

namespace somnus::SOMNUS_CUDA_NAMESPACE {

// The type that CUDA's atomics take.
using U64 = unsigned long long;

inline constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
inline constexpr float kLowestFinite = std::numeric_limits<float>::lowest();

__device__ inline bool IsFinite(float x) { return x - x == 0.0f; }
__device__ inline float NanToLowest(float x) { return x == x ? x : kMinusInfinity; }

// ---- Keys: unsigned numbers in the order of the values that they stand for

// -0 and 0 are one. Not for NaN.
__device__ inline uint32_t OrderedBits(float x) {
  const uint32_t bits = FloatBits(x + 0.0f);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}
__device__ inline float OrderedValue(uint32_t key) {
  return FloatOfBits((key & 0x80000000u) != 0 ? key & 0x7fffffffu : ~key);
}

// The larger value first, of equals the smaller id.
__device__ inline U64 ScoreKey(float value, int32_t id) {
  return static_cast<U64>(OrderedBits(value)) << 32 | (0xffffffffu - static_cast<uint32_t>(id));
}
__device__ inline float ScoreValue(U64 key) { return OrderedValue(static_cast<uint32_t>(key >> 32)); }
__device__ inline int32_t ScoreId(U64 key) {
  return static_cast<int32_t>(0xffffffffu - static_cast<uint32_t>(key));
}

// Stands for "no score": below every key. -inf is never the best.
inline constexpr U64 kNoScore = 0;
// Stands for "some value is NaN": above every key. Its ScoreValue is NaN.
inline constexpr U64 kNanScore = ~U64{0};
__device__ inline U64 BestKey(float value, int32_t id) {
  if (value != value) return kNanScore;
  return value > kMinusInfinity ? ScoreKey(value, id) : kNoScore;
}

// ---- Reductions. Every thread gets the result; the order depends on the number of threads alone.

struct MaxOf {
  template <typename T>
  __device__ T operator()(T a, T b) const {
    return a > b ? a : b;
  }
};
struct SumOf {
  template <typename T>
  __device__ T operator()(T a, T b) const {
    return a + b;
  }
};

// `partials` belongs to this call until the next barrier.
template <int kWarps, typename Op, typename T>
__device__ inline T BlockReduce(T value, T (&partials)[kWarps], const Op& op) {
  static_assert(kWarps <= 32 && (kWarps & (kWarps - 1)) == 0);
  value = Butterfly(value, 16, op);
  if (threadIdx.x % 32 == 0) partials[threadIdx.x / 32] = value;
  __syncthreads();
  return Butterfly(partials[threadIdx.x % kWarps], kWarps / 2, op);
}

// ---- Rows

struct LogitRows {
  const float* data;
  int64_t stride;
  int32_t n;  // values of a row
  __device__ const float* row(int64_t r) const { return data + r * stride; }
};
inline LogitRows MakeLogitRows(const TensorView& logits) {
  return {static_cast<const float*>(logits.data), logits.stride, static_cast<int32_t>(logits.cols)};
}

__device__ inline bool IsAligned16(const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; }

// Block b serves chunk b % chunks of row b / chunks.
struct ChunkOfRow {
  int64_t row;
  int32_t chunk;
};
__device__ inline ChunkOfRow MyChunk(int32_t chunks) {
  return {static_cast<int64_t>(blockIdx.x / static_cast<uint32_t>(chunks)),
          static_cast<int32_t>(blockIdx.x % static_cast<uint32_t>(chunks))};
}

inline constexpr int kValuesPerThread = kChunkValues / kChunkThreads;
inline constexpr int kChunkWarps = kChunkThreads / 32;

// The token of this thread's value j.
__device__ inline int32_t ChunkId(int32_t chunk, int j) {
  return chunk * static_cast<int32_t>(kChunkValues) + j / 4 * (4 * kChunkThreads) +
         4 * static_cast<int32_t>(threadIdx.x) + j % 4;
}

// This thread's values of a chunk; -inf behind the row's end.
__device__ inline void LoadChunk(const float* row, int32_t n, int32_t chunk, float (&x)[kValuesPerThread]) {
  const bool aligned = IsAligned16(row);
#pragma unroll
  for (int j = 0; j < kValuesPerThread; j += 4) {
    const int32_t id = ChunkId(chunk, j);
    if (aligned && id + 4 <= n) {
      const Vec<float, 4> v = LoadVec<float, 4>(row + id);
#pragma unroll
      for (int i = 0; i < 4; ++i) x[j + i] = v[i];
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) x[j + i] = id + i < n ? row[id + i] : kMinusInfinity;
    }
  }
}

// ---- Workspace

struct RowScratch {
  U64* best;
  U64* total;
  ScoredToken* list;
  float* sum;
  int32_t* larger;
  float* group_max;
  int32_t* count;
  float* bound;
  int32_t chunks;
  int32_t candidates;

  __device__ int64_t At(const ChunkOfRow& at) const { return at.row * chunks + at.chunk; }
};

inline RowScratch MakeRowScratch(char* workspace, const SamplingPlan& plan) {
  return {.best = reinterpret_cast<U64*>(workspace + plan.best),
          .total = reinterpret_cast<U64*>(workspace + plan.total),
          .list = reinterpret_cast<ScoredToken*>(workspace + plan.list),
          .sum = reinterpret_cast<float*>(workspace + plan.sum),
          .larger = reinterpret_cast<int32_t*>(workspace + plan.larger),
          .group_max = reinterpret_cast<float*>(workspace + plan.group_max),
          .count = reinterpret_cast<int32_t*>(workspace + plan.count),
          .bound = reinterpret_cast<float*>(workspace + plan.bound),
          .chunks = static_cast<int32_t>(plan.chunks),
          .candidates = static_cast<int32_t>(plan.candidates)};
}

// Returns false, and records an error, when the row is wider than sums allow or the workspace is too small
// for the row.
inline bool FitsWorkspace(CudaDevice& device, const SamplingPlan& plan, const TensorView& logits) {
  if (plan.bytes <= device.workspace_bytes() && logits.cols <= kMaxVocab) return true;
  device.Record(absl::InternalError("rows of logits are more or wider than the workspace was made for"));
  return false;
}

// The largest of each group of kLogitGroup neighbours, NaN aside.
__device__ inline void StoreGroupMax(const RowScratch& scratch, const ChunkOfRow& at,
                                     const float (&x)[kValuesPerThread]) {
#pragma unroll
  for (int j = 0; j < kValuesPerThread; j += 4) {
    float best = kMinusInfinity;
#pragma unroll
    for (int i = 0; i < 4; ++i) best = x[j + i] > best ? x[j + i] : best;
    best = Butterfly(best, 16, MaxOf());
    if (threadIdx.x % 32 == 0)
      scratch.group_max[scratch.At(at) * kGroupsPerChunk + j / 4 * kChunkWarps + threadIdx.x / 32] = best;
  }
}

// This thread's best value of a chunk; kNanScore when any value is NaN.
__device__ inline U64 BestOfThread(int32_t chunk, const float (&x)[kValuesPerThread]) {
  U64 best = kNoScore;
#pragma unroll
  for (int j = 0; j < kValuesPerThread; ++j) best = MaxOf()(best, BestKey(x[j], ChunkId(chunk, j)));
  return best;
}

// The best of a row's chunks, on every thread of a block.
template <int kWarps>
__device__ inline U64 BestOfRow(const RowScratch& scratch, int64_t row, U64 (&partials)[kWarps]) {
  U64 best = kNoScore;
  for (int32_t c = static_cast<int32_t>(threadIdx.x); c < scratch.chunks; c += 32 * kWarps)
    best = MaxOf()(best, scratch.best[row * scratch.chunks + c]);
  return BlockReduce(best, partials, MaxOf());
}

}  // namespace somnus::SOMNUS_CUDA_NAMESPACE
