// Sample: a token of each row, by temperature, top-k, top-p and min-p, with the same random numbers as on the
// CPU.
//
// There are always three kernels, since the rows' parameters are in the device's memory alone. The first
// kernel reads the logits once; greedy rows and rows of plain temperature are then known but for the best of
// their chunks. The second and third kernels cost a launch for such rows; for all other rows they cut
// (logits_select.h) and draw among the remaining tokens.
#include "kernels/counter_random.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/logits_rows.h"
#include "kernels/cuda/logits_select.h"

namespace somnus::SOMNUS_CUDA_NAMESPACE {
namespace {

constexpr float kMinTemperature = 1e-5f;  // below: greedy

__device__ bool IsGreedy(const SampleRow& row) { return !(row.temperature >= kMinTemperature); }

struct SampleFilters {
  const SampleRow* rows;

  __device__ RowFilter operator()(int64_t r, int32_t n) const {
    const SampleRow row = rows[r];
    RowFilter filter{.active = false, .scale = 1.0f, .drop = kMinusInfinity, .top_k = 0, .top_p = 1.0f};
    if (IsGreedy(row)) return filter;
    filter.scale = 1.0f / row.temperature;
    if (row.min_p > 0) filter.drop = min(0.0f, logf(row.min_p));
    if (row.top_k > 0 && row.top_k < n) filter.top_k = row.top_k;
    if (row.top_p < 1) filter.top_p = max(0.0f, row.top_p);
    filter.active = row.min_p > 0 || filter.top_k > 0 || filter.top_p < 1;
    return filter;
  }
};

// -log(-log(u)), u uniform on (0, 1), by the formula of the CPU's kernels: with v = 1 - u = (bits + 1/2) /
// 2^32, -log(1 - v) by Kahan's correction of the rounded 1 - v.
__device__ inline float Gumbel(uint32_t bits) {
  const float v = (static_cast<float>(bits) + 0.5f) * 0x1p-32f;
  const float u = max(1.0f - v, 0x1p-32f);
  const float gap = 1.0f - u;
  const float e = gap > 0.0f ? -logf(u) * (v / gap) : v;
  return -logf(e);
}

__device__ inline U64 DrawKey(float value, int32_t id, const SampleRow& row) {
  const uint32_t bits = CounterBits(static_cast<uint32_t>(id), static_cast<uint32_t>(row.position), row.seed,
                                    [](uint32_t a, uint32_t b) { return MulHi(a, b); });
  return BestKey(value + Gumbel(bits), id);
}

struct ScanShared {
  U64 partials[kChunkWarps];
  float sums[kChunkWarps];
};

// Reads the logits (4 bytes each), writes 8 bytes a chunk, and 64 more bytes for rows that are to be cut.
// Bound by memory for greedy rows; by the generator's multiplications (20 wide multiplications a token) for
// rows of plain temperature.
__global__ void __launch_bounds__(kChunkThreads)
    ScanChunks(LogitRows logits, const SampleRow* rows, RowScratch scratch) {
  ScanShared& shared = SharedStorage<ScanShared>();
  const ChunkOfRow at = MyChunk(scratch.chunks);
  const SampleRow row = rows[at.row];
  const RowFilter filter = SampleFilters{rows}(at.row, logits.n);
  float x[kValuesPerThread];
  LoadChunk(logits.row(at.row), logits.n, at.chunk, x);

  U64 best = kNoScore;
  if (IsGreedy(row)) {
    best = BestOfThread(at.chunk, x);
  } else {
    bool has_nan = false;
#pragma unroll
    for (int j = 0; j < kValuesPerThread; ++j) {
      has_nan |= x[j] != x[j];
      x[j] = filter.Value(x[j]);
    }
    if (has_nan) {
      best = kNanScore;
    } else if (filter.active) {
      best = BestOfThread(at.chunk, x);
    } else {
#pragma unroll
      for (int j = 0; j < kValuesPerThread; ++j) {
        if (x[j] > kMinusInfinity) best = MaxOf()(best, DrawKey(x[j], ChunkId(at.chunk, j), row));
      }
    }
  }
  best = BlockReduce(best, shared.partials, MaxOf());
  if (threadIdx.x == 0) scratch.best[scratch.At(at)] = best;
  if (!filter.active) return;

  if (threadIdx.x == 0 && at.chunk == 0) {
    scratch.count[at.row] = 0;
    scratch.total[at.row] = 0;
  }
  StoreGroupMax(scratch, at, x);
  if (!filter.by_probability() || best == kNoScore) return;
  const float max = ScoreValue(best);
  float sum = 0;
#pragma unroll
  for (int j = 0; j < kValuesPerThread; ++j) sum += expf(x[j] - max);
  sum = BlockReduce(sum, shared.sums, SumOf());
  if (threadIdx.x == 0) scratch.sum[scratch.At(at)] = sum;
}

// The input of a row's cut.
struct CutInput {
  RowFilter filter;
  float max;
  uint32_t low;  // of the search
  uint32_t high;
  int32_t n;
  U64 total;  // weight of all values in reach, where the filter is by_probability
};

// The row's cut by top-k, then top-p. False when the source does not reach the cut.
template <typename Source>
__device__ bool FindCut(const Source& source, const CutInput& in, SelectShared& shared, Cut* cut) {
  const auto by_value = [](float value, int32_t, uint32_t* key) {
    *key = OrderedBits(value);
    return true;
  };
  const auto weight = [&](float value) { return FixedWeight(value, in.max); };
  *cut = {in.low, in.n};
  if (in.filter.top_k > 0) {
    const Found found = FindKey(
        source, in.low, in.high, static_cast<U64>(in.filter.top_k), by_value, [](float) { return U64{1}; },
        shared);
    // All that are equal to the k-th stay, as in vLLM. Fewer than k in reach: min-p has cut more.
    if (found.reached) cut->key = found.key;
  }
  if (!(in.filter.top_p < 1.0f)) return true;
  U64 total = in.total;
  if (in.filter.top_k > 0) {
    total = 0;
    source.ForEach([&](float value, int32_t id) { total += cut->Keeps(value, id) ? weight(value) : 0; });
    total = BlockReduce(total, shared.partials, SumOf());
  }
  // A value stays if the sum of all values before is below p of the total.
  const U64 goal = static_cast<U64>(ceil(static_cast<double>(in.filter.top_p) * static_cast<double>(total)));
  const Found found = FindKey(source, cut->key, in.high, goal > 0 ? goal : 1, by_value, weight, shared);
  if (!found.reached) return false;
  const U64 each = weight(OrderedValue(found.key));
  const U64 missing = (goal > 0 ? goal : 1) - found.above;
  *cut = CutTies(source, found, (missing + each - 1) / each, found.at / each, in.n, shared);
  return true;
}

template <typename Source>
__device__ U64 DrawAmong(const Source& source, const Cut& cut, const SampleRow& row, SelectShared& shared) {
  U64 best = kNoScore;
  source.ForEach([&](float value, int32_t id) {
    if (cut.Keeps(value, id)) best = MaxOf()(best, DrawKey(value, id, row));
  });
  __syncthreads();  // `partials` is free again
  return BlockReduce(best, shared.partials, MaxOf());
}

// A block for each row: all threads serve the search. A pass of the search is a barrier and some fifty
// instructions while the list has a few thousand entries at most.
__global__ void __launch_bounds__(kSelectThreads, 1)
    FinishRows(LogitRows logits, const SampleRow* rows, RowScratch scratch, int32_t* tokens) {
  SelectShared& shared = SharedStorage<SelectShared>();
  const int64_t r = blockIdx.x;
  U64 best = BestOfRow(scratch, r, shared.partials);
  const RowFilter filter = SampleFilters{rows}(r, logits.n);
  const float largest = ScoreValue(best);
  if (filter.active && best != kNoScore && IsFinite(largest)) {
    CutInput in{.filter = filter,
                .max = largest,
                .low = OrderedBits(max(largest + filter.drop, kLowestFinite)),
                .high = OrderedBits(largest),
                .n = logits.n,
                .total = scratch.total[r]};
    Cut cut;
    const ListSource list{scratch.list + r * scratch.candidates, scratch.count[r]};
    if (list.count <= scratch.candidates && FindCut(list, in, shared, &cut)) {
      best = DrawAmong(list, cut, rows[r], shared);
    } else {
      const RowSource whole{logits.row(r), logits.n, filter.scale};
      FindCut(whole, in, shared, &cut);
      best = DrawAmong(whole, cut, rows[r], shared);
    }
  }
  if (threadIdx.x != 0) return;
  const int32_t without = best == kNoScore ? kNoTokenAllowed : kLogitsNotFinite;
  tokens[r] = best != kNoScore && IsFinite(ScoreValue(best)) ? ScoreId(best) : without;
}

}  // namespace

void Sample(Device& device, const TensorView& logits, const SampleRow* rows, int32_t* tokens) {
  CudaDevice& cuda = AsCuda(device);
  if (logits.rows == 0) return;
  const SamplingPlan plan = PlanSampling(logits.rows, logits.cols);
  if (!FitsWorkspace(cuda, plan, logits)) return;
  const RowScratch scratch = MakeRowScratch(cuda.workspace(), plan);
  const LogitRows view = MakeLogitRows(logits);
  const dim3 chunks(static_cast<unsigned>(logits.rows * plan.chunks));
  Launch(cuda, {chunks, dim3(kChunkThreads), sizeof(ScanShared)}, ScanChunks, view, rows, scratch);
  Launch(cuda, {chunks, dim3(kChunkThreads), sizeof(CollectShared)}, CollectCandidates<SampleFilters>, view,
         SampleFilters{rows}, scratch);
  Launch(cuda, {dim3(static_cast<unsigned>(logits.rows)), dim3(kSelectThreads), sizeof(SelectShared)},
         FinishRows, view, rows, scratch, tokens);
}

int64_t SamplingWorkspaceBytes(const CudaDevice&, const OpsLimits& limits) {
  return PlanSampling(limits.max_seqs, limits.vocab_size).bytes;
}

}  // namespace somnus::SOMNUS_CUDA_NAMESPACE
