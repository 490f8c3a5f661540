// ArgMax: the largest value of each row and its smallest id.
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/logits_rows.h"

namespace somnus::SOMNUS_CUDA_NAMESPACE {
namespace {

struct ArgMaxShared {
  U64 partials[kChunkWarps];
};

// Reads the logits once (4 bytes each), writes 8 bytes a chunk. Bound by memory: two 16-byte loads in flight
// a thread, 2048 threads on a multiprocessor.
__global__ void __launch_bounds__(kChunkThreads) ArgMaxChunks(LogitRows logits, RowScratch scratch) {
  ArgMaxShared& shared = SharedStorage<ArgMaxShared>();
  const ChunkOfRow at = MyChunk(scratch.chunks);
  float x[kValuesPerThread];
  LoadChunk(logits.row(at.row), logits.n, at.chunk, x);
  const U64 best = BlockReduce(BestOfThread(at.chunk, x), shared.partials, MaxOf());
  if (threadIdx.x == 0) scratch.best[scratch.At(at)] = best;
}

// A warp for each row: a row has few chunks.
__global__ void __launch_bounds__(32) ArgMaxRows(RowScratch scratch, int32_t id_offset, ScoredToken* best) {
  U64 key = kNoScore;
  for (int32_t c = static_cast<int32_t>(threadIdx.x); c < scratch.chunks; c += 32)
    key = MaxOf()(key, scratch.best[int64_t{blockIdx.x} * scratch.chunks + c]);
  key = Butterfly(key, 16, MaxOf());
  if (threadIdx.x != 0) return;
  const float value = key == kNoScore ? kMinusInfinity : ScoreValue(key);
  const bool has_id = key != kNoScore && key != kNanScore;
  best[blockIdx.x] = {value, has_id ? ScoreId(key) + id_offset : -1};
}

__global__ void ArgMaxOfNothing(ScoredToken* best, int32_t rows) {
  const int32_t r = static_cast<int32_t>(blockIdx.x * blockDim.x + threadIdx.x);
  if (r < rows) best[r] = {kMinusInfinity, -1};
}

}  // namespace

void ArgMax(Device& device, const TensorView& logits, int64_t id_offset, ScoredToken* best) {
  CudaDevice& cuda = AsCuda(device);
  if (logits.rows == 0) return;
  const unsigned rows = static_cast<unsigned>(logits.rows);
  if (logits.cols == 0) {
    Launch(cuda, {dim3((rows + 127) / 128), dim3(128), 0}, ArgMaxOfNothing, best, static_cast<int32_t>(rows));
    return;
  }
  const SamplingPlan plan = PlanSampling(logits.rows, logits.cols);
  if (!FitsWorkspace(cuda, plan, logits)) return;
  const RowScratch scratch = MakeRowScratch(cuda.workspace(), plan);
  Launch(cuda, {dim3(rows * static_cast<unsigned>(plan.chunks)), dim3(kChunkThreads), sizeof(ArgMaxShared)},
         ArgMaxChunks, MakeLogitRows(logits), scratch);
  Launch(cuda, {dim3(rows), dim3(32), 0}, ArgMaxRows, scratch, static_cast<int32_t>(id_offset), best);
}

}  // namespace somnus::SOMNUS_CUDA_NAMESPACE
