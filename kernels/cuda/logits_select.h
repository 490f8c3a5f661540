#pragma once
// The exact cut of a row by count (top-k) or by probability (top-p), without sorting: first the candidates,
// values above a bound that the cut is known to reach, are collected into a list; then one block searches the
// cut's key, three bits a pass, by sums over the list, or over the row when the list was too short. Sums are
// integers: the result does not depend on the order in which values were collected or added.

#include <cstdint>

#include "kernels/cuda/logits_rows.h"

namespace somnus::SOMNUS_CUDA_NAMESPACE {

// Which values of a row are wanted: value * scale, at least max + drop; then the top_k largest (0: all); then
// the likeliest that make up top_p (1: all).
struct RowFilter {
  bool active;  // else the row needs no candidates
  float scale;
  float drop;
  int32_t top_k;
  float top_p;

  // Whether top-p cuts without top-k: only then the whole row's probabilities matter.
  __device__ bool by_probability() const { return top_k == 0 && top_p < 1.0f; }
  __device__ float Value(float x) const { return NanToLowest(MulRn(x, scale)); }
};

// e^(value - max) in units of 2^-40.
__device__ inline U64 FixedWeight(float value, float max) {
  return static_cast<U64>(expf(value - max) * 0x1p40f);
}

// ---- Candidates

inline constexpr int kBoundBins = 256;
inline constexpr float kBinsPerUnit = 8;  // 32 below the maximum

struct CollectShared {
  U64 partials[kChunkWarps];
  float sums[kChunkWarps];
  uint32_t bins[kBoundBins];
  float bound;
  int32_t count;
  int32_t base;
};

// A value that at least k of the row's values reach, as k groups have a maximum that does; -inf when unknown.
__device__ inline float BoundOfTopK(const RowScratch& scratch, int64_t row, float max, int32_t k,
                                    CollectShared& shared) {
  for (int b = static_cast<int>(threadIdx.x); b < kBoundBins; b += kChunkThreads) shared.bins[b] = 0;
  __syncthreads();
  const int32_t groups = scratch.chunks * static_cast<int32_t>(kGroupsPerChunk);
  for (int32_t g = static_cast<int32_t>(threadIdx.x); g < groups; g += kChunkThreads) {
    const float bin = (max - scratch.group_max[row * groups + g]) * kBinsPerUnit;
    if (bin < kBoundBins) AtomicAdd(&shared.bins[static_cast<int>(bin)], 1u);
  }
  __syncthreads();
  constexpr int kBinsPerLane = kBoundBins / 32;
  if (threadIdx.x < 32) {
    const int lane = static_cast<int>(threadIdx.x);
    uint32_t own = 0;
    for (int i = 0; i < kBinsPerLane; ++i) own += shared.bins[lane * kBinsPerLane + i];
    uint32_t before = own;
    for (int offset = 1; offset < 32; offset *= 2) {
      const uint32_t other = ShflUp(before, offset);
      if (lane >= offset) before += other;
    }
    before -= own;
    const uint32_t wanted = static_cast<uint32_t>(k);
    if (before < wanted && before + own >= wanted) {
      int bin = lane * kBinsPerLane;
      while ((before += shared.bins[bin]) < wanted) ++bin;
      // A little below the bin's edge: the bins were computed with rounding.
      shared.bound = max - (static_cast<float>(bin) + 1.01f) / kBinsPerUnit;
    } else if (lane == 31 && before + own < wanted) {
      shared.bound = kMinusInfinity;
    }
  }
  __syncthreads();
  return shared.bound;
}

// A lower bound of the likeliest tokens that make up p: all n values below the bound would weigh less than 1
// - p. An estimate from sums of floats; when rounding makes the bound wrong, the search in the list finds
// out.
__device__ inline float BoundOfTopP(const RowScratch& scratch, int64_t row, float max, float p, int32_t n,
                                    CollectShared& shared) {
  float total = 0;
  for (int32_t c = static_cast<int32_t>(threadIdx.x); c < scratch.chunks; c += kChunkThreads) {
    const U64 best = scratch.best[row * scratch.chunks + c];
    if (best != kNoScore) total += scratch.sum[row * scratch.chunks + c] * expf(ScoreValue(best) - max);
  }
  total = BlockReduce(total, shared.sums, SumOf());
  return max + logf((1.0f - p) * total / static_cast<float>(n)) - 0.01f;
}

__device__ inline float CandidateBound(const RowScratch& scratch, int64_t row, const RowFilter& filter,
                                       float max, int32_t n, CollectShared& shared) {
  const float floor = max + filter.drop;
  float bound = kMinusInfinity;
  if (filter.top_k > 0) {
    bound = BoundOfTopK(scratch, row, max, filter.top_k, shared);
  } else if (filter.drop == kMinusInfinity) {
    bound = BoundOfTopP(scratch, row, max, filter.top_p > 0.0f ? filter.top_p : 0.0f, n, shared);
  }
  return bound > floor ? bound : floor;
}

// Appends this block's values that reach `bound` to the row's list, in any order.
__device__ inline void AppendCandidates(const RowScratch& scratch, const ChunkOfRow& at,
                                        const float (&x)[kValuesPerThread], float bound, int32_t n,
                                        CollectShared& shared) {
  int32_t own = 0;
#pragma unroll
  for (int j = 0; j < kValuesPerThread; ++j) own += x[j] >= bound && ChunkId(at.chunk, j) < n ? 1 : 0;
  int32_t place = own > 0 ? AtomicAdd(&shared.count, own) : 0;
  __syncthreads();
  if (threadIdx.x == 0 && shared.count > 0) shared.base = AtomicAdd(&scratch.count[at.row], shared.count);
  __syncthreads();
  if (own == 0) return;
  place += shared.base;
#pragma unroll
  for (int j = 0; j < kValuesPerThread; ++j) {
    if (!(x[j] >= bound) || ChunkId(at.chunk, j) >= n) continue;
    if (place < scratch.candidates)
      scratch.list[at.row * scratch.candidates + place] = {x[j], ChunkId(at.chunk, j)};
    ++place;
  }
}

// Second kernel over chunks: reads the first kernel's numbers of the row, then the chunk again (from L2,
// mostly) if the chunk holds candidates; adds up the row's weights where top-p needs them. FilterOf(row, n)
// returns a RowFilter. The first kernel has zeroed the row's count and total.
template <typename FilterOf>
__global__ void __launch_bounds__(kChunkThreads)
    CollectCandidates(LogitRows logits, FilterOf filter_of, RowScratch scratch) {
  CollectShared& shared = SharedStorage<CollectShared>();
  const ChunkOfRow at = MyChunk(scratch.chunks);
  const RowFilter filter = filter_of(at.row, logits.n);
  if (!filter.active) return;
  if (threadIdx.x == 0) shared.count = 0;
  const U64 best = BestOfRow(scratch, at.row, shared.partials);
  const float max = best == kNoScore ? kMinusInfinity : ScoreValue(best);
  if (!IsFinite(max)) return;
  const float bound = CandidateBound(scratch, at.row, filter, max, logits.n, shared);
  if (at.chunk == 0 && threadIdx.x == 0) scratch.bound[at.row] = bound;
  const U64 own_best = scratch.best[scratch.At(at)];
  const bool sums = filter.by_probability();
  if (!sums && bound > kMinusInfinity && (own_best == kNoScore || ScoreValue(own_best) < bound)) return;

  float x[kValuesPerThread];
  LoadChunk(logits.row(at.row), logits.n, at.chunk, x);
#pragma unroll
  for (int j = 0; j < kValuesPerThread; ++j) x[j] = filter.Value(x[j]);
  if (sums) {
    const float floor = max + filter.drop;
    U64 weight = 0;
#pragma unroll
    for (int j = 0; j < kValuesPerThread; ++j) weight += x[j] >= floor ? FixedWeight(x[j], max) : 0;
    __syncthreads();  // `partials` is free again
    weight = BlockReduce(weight, shared.partials, SumOf());
    if (threadIdx.x == 0 && weight > 0) AtomicAdd(&scratch.total[at.row], weight);
  }
  AppendCandidates(scratch, at, x, bound, logits.n, shared);
}

// ---- Search. All threads of a block call; each gets the same result.

inline constexpr int kSelectThreads = 512;
inline constexpr int kSelectWarps = kSelectThreads / 32;
inline constexpr int kDigits = 8;

struct SelectShared {
  U64 digits[2][kSelectWarps][kDigits];
  U64 partials[kSelectWarps];
};

// Candidates in the order of collection.
struct ListSource {
  const ScoredToken* list;
  int32_t count;

  template <typename Fn>
  __device__ void ForEach(const Fn& fn) const {
    for (int32_t i = static_cast<int32_t>(threadIdx.x); i < count; i += kSelectThreads)
      fn(list[i].value, list[i].id);
  }
};

// A whole row.
struct RowSource {
  const float* row;
  int32_t n;
  float scale;

  __device__ float Value(float x) const { return NanToLowest(MulRn(x, scale)); }
  template <typename Fn>
  __device__ void ForEach(const Fn& fn) const {
    const int32_t t = static_cast<int32_t>(threadIdx.x);
    const int32_t vectors = IsAligned16(row) ? n / 4 : 0;
#pragma unroll 2
    for (int32_t i = t; i < vectors; i += kSelectThreads) {
      const Vec<float, 4> v = LoadVec<float, 4>(row + 4 * i);
#pragma unroll
      for (int j = 0; j < 4; ++j) fn(Value(v[j]), 4 * i + j);
    }
    for (int32_t i = 4 * vectors + t; i < n; i += kSelectThreads) fn(Value(row[i]), i);
  }
};

// Sums of 8 digits over a warp: lane l ends with the sum of digit l / 4. At each step lanes give away half of
// their digits.
__device__ inline U64 SumDigits(U64 (&sums)[kDigits]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int width = 4; width > 0; width /= 2) {
    const bool upper = (lane & (4 * width)) != 0;
#pragma unroll
    for (int j = 0; j < width; ++j) {
      const U64 give = upper ? sums[j] : sums[j + width];
      sums[j] = (upper ? sums[j + width] : sums[j]) + ShflXor(give, 4 * width);
    }
  }
  return Butterfly(sums[0], 2, SumOf());
}

struct Found {
  bool reached;  // whether all keys together weigh `goal`
  uint32_t key;  // the largest for which keys >= it weigh `goal` or more
  U64 above;     // weight of the keys > key
  U64 at;        // weight of the keys == key
};

// Looks for the key within [low, high]. `item(value, id, &key)` says whether an element takes part, and its
// key; weight(value) is called for elements in range. goal > 0.
template <typename Source, typename Item, typename Weight>
__device__ Found FindKey(const Source& source, uint32_t low, uint32_t high, U64 goal, const Item& item,
                         const Weight& weight, SelectShared& shared) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  Found found{.reached = true, .key = low, .above = 0, .at = 0};
  uint32_t last = high - low;  // the range is [key, key + last]
  __syncthreads();             // an earlier search's sums were read
  int shift, turn = 0;
  do {
    shift = 29 - CountLeadingZeros(last);
    shift = shift > 0 ? shift : 0;
    U64 sums[kDigits] = {};
    source.ForEach([&](float value, int32_t id) {
      uint32_t key;
      if (!item(value, id, &key)) return;
      const uint32_t offset = key - found.key;
      if (key < found.key || offset > last) return;
      const uint32_t digit = offset >> shift;
      const U64 w = weight(value);
#pragma unroll
      for (uint32_t d = 0; d < kDigits; ++d) sums[d] += d == digit ? w : 0;
    });
    U64 sum = SumDigits(sums);
    if (lane % 4 == 0) shared.digits[turn][threadIdx.x / 32][lane / 4] = sum;
    __syncthreads();
    sum = 0;
#pragma unroll
    for (int w = lane % 4; w < kSelectWarps; w += 4) sum += shared.digits[turn][w][lane / 4];
    sum = Butterfly(sum, 2, SumOf());
    turn ^= 1;

    int digit = -1;
    U64 above = found.above;
#pragma unroll
    for (int d = kDigits - 1; d >= 0; --d) {
      const U64 of_digit = ShflIdx(sum, 4 * d);
      if (digit >= 0) continue;
      if (above + of_digit >= goal) {
        digit = d;
        found.at = of_digit;
      } else {
        above += of_digit;
      }
    }
    found.above = above;
    if (digit < 0) {
      found.reached = false;
      return found;
    }
    const uint32_t step = static_cast<uint32_t>(digit) << shift;
    const uint32_t size = (1u << shift) - 1;
    last = last - step < size ? last - step : size;
    found.key += step;
  } while (shift > 0);
  return found;
}

// The elements above key, and of the elements equal to key only ids <= last_id.
struct Cut {
  uint32_t key;
  int32_t last_id;
  __device__ bool Keeps(float value, int32_t id) const {
    const uint32_t own = OrderedBits(value);
    return own > key || (own == key && id <= last_id);
  }
};

// The cut that keeps `ties` of the elements with the found key, the elements with the smallest ids.
template <typename Source>
__device__ Cut CutTies(const Source& source, const Found& found, U64 ties, U64 all_ties, int32_t n,
                       SelectShared& shared) {
  if (ties >= all_ties) return {found.key, n};
  const Found id = FindKey(
      source, 0, static_cast<uint32_t>(n - 1), ties,
      [&](float value, int32_t id, uint32_t* key) {
        *key = static_cast<uint32_t>(n - 1 - id);
        return OrderedBits(value) == found.key;
      },
      [](float) { return U64{1}; }, shared);
  return {found.key, n - 1 - static_cast<int32_t>(id.key)};
}

}  // namespace somnus::SOMNUS_CUDA_NAMESPACE
