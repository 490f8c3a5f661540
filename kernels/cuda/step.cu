// A step's inputs and small copies between ops: a few kilobytes each, so each costs no more than a launch's
// latency.
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/rows.h"

namespace somnus::SOMNUS_CUDA_NAMESPACE {
namespace {

constexpr unsigned kStepThreads = 128;

LaunchConfig Blocks(int64_t n) {
  return {.grid = dim3(static_cast<unsigned>(n)), .block = dim3(kStepThreads), .overlaps_previous = true};
}

// A thread for each of n elements.
LaunchConfig PerElement(int64_t n) { return Blocks((n + kStepThreads - 1) / kStepThreads); }

__device__ __forceinline__ int64_t MyElement() { return int64_t{blockIdx.x} * blockDim.x + threadIdx.x; }

// A block for each row: writes cols * element bytes.
__global__ void __launch_bounds__(kStepThreads) ZeroRows(unsigned char* data, int64_t stride, int64_t bytes) {
  JoinStream();
  unsigned char* const row = data + blockIdx.x * stride;
  for (int64_t i = threadIdx.x; i < bytes; i += blockDim.x) row[i] = 0;
}

__global__ void __launch_bounds__(kStepThreads)
    EditTables(const BlockTableEdit* edits, int64_t n, int32_t* tables, int64_t max_blocks_per_seq) {
  JoinStream();
  const int64_t i = MyElement();
  if (i < n) tables[edits[i].slot * max_blocks_per_seq + edits[i].index] = edits[i].block_id;
}

// A block for each sequence: reads and writes 4 bytes per cache block of the sequence's context.
__global__ void __launch_bounds__(kStepThreads)
    GatherTables(const int32_t* tables, const int32_t* slots, const int32_t* context_len,
                 int64_t max_blocks_per_seq, int64_t block_size, int32_t* out) {
  JoinStream();
  const int64_t i = blockIdx.x;
  const int64_t count = (context_len[i] + block_size - 1) / block_size;
  const int32_t* const from = tables + slots[i] * max_blocks_per_seq;
  for (int64_t j = threadIdx.x; j < count; j += blockDim.x) out[i * max_blocks_per_seq + j] = from[j];
}

__global__ void __launch_bounds__(kStepThreads) Resolve(int32_t* ids, int64_t n, const int32_t* values) {
  JoinStream();
  const int64_t i = MyElement();
  if (i >= n || ids[i] >= 0) return;
  const int32_t value = values[-1 - ids[i]];
  ids[i] = value < 0 ? 0 : value;
}

__global__ void __launch_bounds__(kStepThreads)
    Scatter(const int32_t* slots, const int32_t* tokens, int64_t n, int32_t* values) {
  JoinStream();
  const int64_t i = MyElement();
  if (i < n && slots[i] >= 0) values[slots[i]] = tokens[i];
}

// A block for a piece of a row. Bound by memory, 8 bytes an element; rows of a vocabulary shard start
// anywhere, so elements move one by one.
__global__ void __launch_bounds__(kStepThreads)
    CopyRows(const float* x, int64_t x_stride, float* out, int64_t out_stride, int64_t cols) {
  JoinStream();
  const float* const from = x + blockIdx.y * x_stride;
  float* const to = out + blockIdx.y * out_stride;
  for (int64_t c = MyElement(); c < cols; c += int64_t{gridDim.x} * blockDim.x) to[c] = from[c];
}

__global__ void __launch_bounds__(kStepThreads)
    CombineBest(const ScoredToken* all, int64_t num_ranks, int64_t num_rows, int32_t* tokens) {
  JoinStream();
  const int64_t r = MyElement();
  if (r >= num_rows) return;
  ScoredToken best = all[r];
  for (int64_t rank = 1; rank < num_ranks; ++rank) {
    const ScoredToken other = all[rank * num_rows + r];
    if (other.value != other.value || other.value > best.value) best = other;
  }
  const bool finite = best.value - best.value == 0.0f;
  tokens[r] = finite ? best.id : kLogitsNotFinite;
}

}  // namespace

void FillZero(Device& device, const TensorView& out) {
  const int64_t size = SizeOf(out.dtype);
  Launch(AsCuda(device), Blocks(out.rows), ZeroRows, static_cast<unsigned char*>(out.data), out.stride * size,
         out.cols * size);
}

void EditBlockTables(Device& device, const BlockTableEdit* edits, int64_t n, int32_t* tables,
                     int64_t max_blocks_per_seq) {
  Launch(AsCuda(device), PerElement(n), EditTables, edits, n, tables, max_blocks_per_seq);
}

void GatherBlockTables(Device& device, const int32_t* tables, const int32_t* slots,
                       const int32_t* context_len, int64_t n, int64_t max_blocks_per_seq, int64_t block_size,
                       int32_t* out) {
  Launch(AsCuda(device), Blocks(n), GatherTables, tables, slots, context_len, max_blocks_per_seq, block_size,
         out);
}

void ResolveTokens(Device& device, int32_t* ids, int64_t n, const int32_t* values) {
  Launch(AsCuda(device), PerElement(n), Resolve, ids, n, values);
}

void ScatterTokens(Device& device, const int32_t* slots, const int32_t* tokens, int64_t n, int32_t* values) {
  Launch(AsCuda(device), PerElement(n), Scatter, slots, tokens, n, values);
}

void CopyMatrix(Device& device, const TensorView& x, const TensorView& out) {
  LaunchConfig config = PerElement((x.cols + 7) / 8);  // eight elements a thread
  config.grid.y = static_cast<unsigned>(x.rows);
  Launch(AsCuda(device), config, CopyRows, static_cast<const float*>(x.data), x.stride,
         static_cast<float*>(out.data), out.stride, x.cols);
}

void CombineArgMax(Device& device, const ScoredToken* all, int64_t num_ranks, int64_t num_rows,
                   int32_t* tokens) {
  Launch(AsCuda(device), PerElement(num_rows), CombineBest, all, num_ranks, num_rows, tokens);
}

}  // namespace somnus::SOMNUS_CUDA_NAMESPACE
