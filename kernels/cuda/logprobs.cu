// LogProbs: log-probabilities and ranks of given tokens, and the likeliest tokens of each row in order.
//
// One pass over the logits gives the first two; the likeliest are cut out as for top-k sampling
// (logits_select.h), then at most 64 are put in order.
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/logits_rows.h"
#include "kernels/cuda/logits_select.h"

namespace somnus::SOMNUS_CUDA_NAMESPACE {
namespace {

constexpr int32_t kMaxTop = 64;

struct TopFilter {
  int32_t k;
  __device__ RowFilter operator()(int64_t, int32_t) const {
    return {.active = true, .scale = 1.0f, .drop = kMinusInfinity, .top_k = k, .top_p = 1.0f};
  }
};

struct ScanLogprobShared {
  U64 partials[kChunkWarps];
  float sums[kChunkWarps];
  int32_t counts[kChunkWarps];
};

// Reads the logits once, writes 80 bytes a chunk: the best value, the sum of e^(x - best), how many values
// are larger than the token's, and the groups' maxima. Bound by memory, about 25 instructions a value.
__global__ void __launch_bounds__(kChunkThreads)
    ScanLogprobChunks(LogitRows logits, const int32_t* ids, RowScratch scratch) {
  ScanLogprobShared& shared = SharedStorage<ScanLogprobShared>();
  const ChunkOfRow at = MyChunk(scratch.chunks);
  const float* row = logits.row(at.row);
  const float than = row[ids[at.row]];
  float x[kValuesPerThread];
  LoadChunk(row, logits.n, at.chunk, x);
  const U64 best = BlockReduce(BestOfThread(at.chunk, x), shared.partials, MaxOf());
  // For a chunk without a finite value the sum is 0, or NaN where the chunk holds a NaN.
  const float max = best == kNoScore ? 0.0f : ScoreValue(best);
  float sum = 0;
  int32_t larger = 0;
#pragma unroll
  for (int j = 0; j < kValuesPerThread; ++j) {
    sum += expf(x[j] - max);
    larger += x[j] > than ? 1 : 0;
  }
  sum = BlockReduce(sum, shared.sums, SumOf());
  larger = BlockReduce(larger, shared.counts, SumOf());
  StoreGroupMax(scratch, at, x);
  if (threadIdx.x != 0) return;
  scratch.best[scratch.At(at)] = best;
  scratch.sum[scratch.At(at)] = sum;
  scratch.larger[scratch.At(at)] = larger;
  if (at.chunk == 0) scratch.count[at.row] = 0;
}

struct Outputs {
  const int32_t* ids;
  int32_t k;
  float* logprob;
  int32_t* rank;
  ScoredToken* top;
};

struct FinishShared {
  SelectShared select;
  double sums[kSelectWarps];
  int32_t counts[kSelectWarps];
  U64 top[kMaxTop];
  int32_t num_top;
};

// log(sum(e^x)); NaN when a value is NaN, or when the largest is no number.
__device__ double LogSumExp(const RowScratch& scratch, int64_t r, U64 best, FinishShared& shared) {
  const float max = best == kNoScore ? kMinusInfinity : ScoreValue(best);
  double sum = 0;
  for (int32_t c = static_cast<int32_t>(threadIdx.x); c < scratch.chunks; c += kSelectThreads) {
    const U64 own = scratch.best[r * scratch.chunks + c];
    const double s = static_cast<double>(scratch.sum[r * scratch.chunks + c]);
    sum += own == kNoScore ? s : s * static_cast<double>(expf(ScoreValue(own) - max));
  }
  sum = BlockReduce(sum, shared.sums, SumOf());
  return IsFinite(max) ? static_cast<double>(max) + log(sum) : static_cast<double>(max - max);
}

// The `wanted` likeliest of the source into shared.top, in order of keys. False when the source holds fewer.
template <typename Source>
__device__ bool FindTop(const Source& source, int32_t wanted, int32_t n, FinishShared& shared) {
  const Found found = FindKey(
      source, OrderedBits(kMinusInfinity), OrderedBits(-kMinusInfinity), static_cast<U64>(wanted),
      [](float value, int32_t, uint32_t* key) {
        *key = OrderedBits(value);
        return true;
      },
      [](float) { return U64{1}; }, shared.select);
  if (!found.reached) return false;
  const Cut cut = CutTies(source, found, static_cast<U64>(wanted) - found.above, found.at, n, shared.select);
  source.ForEach([&](float value, int32_t id) {
    if (cut.Keeps(value, id)) shared.top[AtomicAdd(&shared.num_top, 1)] = ScoreKey(value, id);
  });
  __syncthreads();
  return true;
}

// A block for each row; see FinishLogprobRows of sampling.cu.
__global__ void __launch_bounds__(kSelectThreads, 1)
    FinishLogprobRows(LogitRows logits, RowScratch scratch, Outputs out) {
  FinishShared& shared = SharedStorage<FinishShared>();
  const int64_t r = blockIdx.x;
  const int32_t t = static_cast<int32_t>(threadIdx.x);
  if (t == 0) shared.num_top = 0;
  const U64 best = BestOfRow(scratch, r, shared.select.partials);
  const double lse = LogSumExp(scratch, r, best, shared);
  int32_t larger = 0;
  for (int32_t c = t; c < scratch.chunks; c += kSelectThreads)
    larger += scratch.larger[r * scratch.chunks + c];
  larger = BlockReduce(larger, shared.counts, SumOf());
  if (t == 0) {
    out.logprob[r] = static_cast<float>(static_cast<double>(logits.row(r)[out.ids[r]]) - lse);
    out.rank[r] = larger + 1;
  }
  if (out.k == 0) return;

  const int32_t wanted = min(out.k, logits.n);
  const ListSource list{scratch.list + r * scratch.candidates, scratch.count[r]};
  if (list.count > scratch.candidates || !FindTop(list, wanted, logits.n, shared))
    FindTop(RowSource{logits.row(r), logits.n, 1.0f}, wanted, logits.n, shared);
  if (t >= wanted) return;
  const U64 own = shared.top[t];
  int32_t place = 0;
  for (int32_t i = 0; i < wanted; ++i) place += shared.top[i] > own ? 1 : 0;
  const ScoredToken token{static_cast<float>(static_cast<double>(ScoreValue(own)) - lse), ScoreId(own)};
  out.top[r * out.k + place] = token;
  // A vocabulary smaller than k: the rest repeats the last.
  if (place != wanted - 1) return;
  for (int32_t i = wanted; i < out.k; ++i) out.top[r * out.k + i] = token;
}

}  // namespace

void LogProbs(Device& device, const TensorView& logits, const int32_t* ids, int64_t k, float* out_logprob,
              int32_t* out_rank, ScoredToken* out_top) {
  CudaDevice& cuda = AsCuda(device);
  if (logits.rows == 0) return;
  const SamplingPlan plan = PlanSampling(logits.rows, logits.cols);
  if (!FitsWorkspace(cuda, plan, logits)) return;
  if (k > kMaxTop) return cuda.Record(absl::InvalidArgumentError("more likely tokens than 64"));
  const RowScratch scratch = MakeRowScratch(cuda.workspace(), plan);
  const LogitRows view = MakeLogitRows(logits);
  const dim3 chunks(static_cast<unsigned>(logits.rows * plan.chunks));
  Launch(cuda, {chunks, dim3(kChunkThreads), sizeof(ScanLogprobShared)}, ScanLogprobChunks, view, ids,
         scratch);
  const Outputs out{
      .ids = ids, .k = static_cast<int32_t>(k), .logprob = out_logprob, .rank = out_rank, .top = out_top};
  if (k > 0) {
    const TopFilter filter{static_cast<int32_t>(std::min(k, logits.cols))};
    Launch(cuda, {chunks, dim3(kChunkThreads), sizeof(CollectShared)}, CollectCandidates<TopFilter>, view,
           filter, scratch);
  }
  Launch(cuda, {dim3(static_cast<unsigned>(logits.rows)), dim3(kSelectThreads), sizeof(FinishShared)},
         FinishLogprobRows, view, scratch, out);
}

}  // namespace somnus::SOMNUS_CUDA_NAMESPACE
