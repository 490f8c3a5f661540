// The ops that change logits before temperature: allowed ids, edits, penalties and the counts for penalties.
// All ops are bound by memory, or too small to be bound by more than a launch; neighbouring threads touch
// neighbouring values.
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/ptx.h"
#include "kernels/cuda/sampling_plan.h"

namespace somnus::SOMNUS_CUDA_NAMESPACE {
namespace {

constexpr float kForbidden = -std::numeric_limits<float>::infinity();
constexpr int kEditThreads = 256;
constexpr int64_t kIdsPerBlock = 4 * kEditThreads;

int64_t MaskWords(int64_t vocab) { return (vocab + 31) / 32; }

// A block for every kIdsPerBlock ids of every row: block b serves piece b % pieces of row b / pieces.
struct Pieces {
  int32_t per_row;
  int32_t ids;  // of a row
};
Pieces MakePieces(int64_t ids) {
  return {static_cast<int32_t>((ids + kIdsPerBlock - 1) / kIdsPerBlock), static_cast<int32_t>(ids)};
}
dim3 GridOf(int64_t rows, const Pieces& pieces) { return dim3(static_cast<unsigned>(rows * pieces.per_row)); }
dim3 GridOf(int64_t items) { return dim3(static_cast<unsigned>((items + kEditThreads - 1) / kEditThreads)); }

__device__ int64_t MyRow(const Pieces& pieces) { return blockIdx.x / static_cast<uint32_t>(pieces.per_row); }
template <typename Fn>
__device__ void ForMyIds(const Pieces& pieces, const Fn& fn) {
  const int32_t begin =
      static_cast<int32_t>(blockIdx.x % static_cast<uint32_t>(pieces.per_row) * kIdsPerBlock + threadIdx.x);
#pragma unroll
  for (int32_t i = 0; i < static_cast<int32_t>(kIdsPerBlock); i += kEditThreads) {
    if (begin + i < pieces.ids) fn(begin + i);
  }
}
__device__ int64_t MyItem() { return int64_t{blockIdx.x} * kEditThreads + threadIdx.x; }

__device__ bool HasBit(const uint32_t* mask, int32_t id) { return (mask[id / 32] >> (id % 32) & 1u) != 0; }

struct Matrix {
  float* data;
  int64_t stride;
};

// Reads a bit, writes 4 bytes for a forbidden token: at most the logits once.
__global__ void __launch_bounds__(kEditThreads)
    KeepAllowedKernel(Matrix logits, const int32_t* rows, const uint32_t* masks, int64_t words,
                      Pieces pieces) {
  const int64_t i = MyRow(pieces);
  float* const row = logits.data + rows[i] * logits.stride;
  const uint32_t* const mask = masks + i * words;
  ForMyIds(pieces, [&](int32_t id) {
    if (!HasBit(mask, id)) row[id] = kForbidden;
  });
}

__global__ void __launch_bounds__(kEditThreads)
    EditLogitsKernel(Matrix logits, const LogitEdit* edits, int64_t n) {
  const int64_t i = MyItem();
  if (i >= n) return;
  const LogitEdit edit = edits[i];
  float& logit = logits.data[edit.row * logits.stride + edit.id];
  logit = edit.addend == kForbidden ? kForbidden : logit + edit.addend;
}

__global__ void __launch_bounds__(kEditThreads)
    ClearTokenCountsKernel(TokenCounts counts, const int32_t* slots, int64_t words, Pieces pieces) {
  const int32_t slot = slots[MyRow(pieces)];
  if (slot < 0) return;
  ForMyIds(pieces, [&](int32_t id) {
    counts.outputs[slot * counts.vocab + id] = 0;
    if (id % 32 == 0) counts.in_prompt[slot * words + id / 32] = 0;
  });
}

__global__ void __launch_bounds__(kEditThreads)
    MarkPromptTokensKernel(uint32_t* mask, const int32_t* ids, int64_t n) {
  const int64_t i = MyItem();
  if (i < n) AtomicOr(&mask[ids[i] / 32], 1u << (ids[i] % 32));
}

__global__ void __launch_bounds__(kEditThreads)
    CountTokensKernel(TokenCounts counts, const int32_t* slots, const int32_t* ids, int64_t n) {
  const int64_t i = MyItem();
  if (i < n && slots[i] >= 0 && ids[i] >= 0) AtomicAdd(&counts.outputs[slots[i] * counts.vocab + ids[i]], 1);
}

// For a row with penalties the kernel reads 4 bytes and a bit for each id, and reads and writes the logits of
// tokens that occurred. Rounds as the CPU does.
__global__ void __launch_bounds__(kEditThreads)
    ApplyPenaltiesKernel(Matrix logits, const PenaltyRow* rows, TokenCounts counts, int64_t words,
                         Pieces pieces) {
  const int64_t r = MyRow(pieces);
  const PenaltyRow p = rows[r];
  if (p.slot < 0) return;
  float* const row = logits.data + r * logits.stride;
  const int32_t* const outputs = counts.outputs + p.slot * counts.vocab;
  const uint32_t* const mask = counts.in_prompt + p.slot * words;
  ForMyIds(pieces, [&](int32_t id) {
    const int32_t count = outputs[id];
    if (count == 0 && !HasBit(mask, id)) return;
    const float x = row[id];
    float y = x > 0 ? x / p.repetition : MulRn(x, p.repetition);
    y -= MulRn(p.frequency, static_cast<float>(count));
    row[id] = count > 0 ? y - p.presence : y;
  });
}

Matrix MakeMatrix(const TensorView& logits) { return {static_cast<float*>(logits.data), logits.stride}; }

}  // namespace

void KeepAllowed(Device& device, const TensorView& logits, const int32_t* rows, const uint32_t* masks,
                 int64_t n) {
  const Pieces pieces = MakePieces(logits.cols);
  Launch(AsCuda(device), {GridOf(n, pieces), dim3(kEditThreads), 0}, KeepAllowedKernel, MakeMatrix(logits),
         rows, masks, MaskWords(logits.cols), pieces);
}

void EditLogits(Device& device, const TensorView& logits, const LogitEdit* edits, int64_t n) {
  Launch(AsCuda(device), {GridOf(n), dim3(kEditThreads), 0}, EditLogitsKernel, MakeMatrix(logits), edits, n);
}

void ClearTokenCounts(Device& device, const TokenCounts& counts, const int32_t* slots, int64_t n) {
  const Pieces pieces = MakePieces(counts.vocab);
  Launch(AsCuda(device), {GridOf(n, pieces), dim3(kEditThreads), 0}, ClearTokenCountsKernel, counts, slots,
         MaskWords(counts.vocab), pieces);
}

void MarkPromptTokens(Device& device, const TokenCounts& counts, int32_t slot, const int32_t* ids,
                      int64_t n) {
  Launch(AsCuda(device), {GridOf(n), dim3(kEditThreads), 0}, MarkPromptTokensKernel,
         counts.in_prompt + slot * MaskWords(counts.vocab), ids, n);
}

void CountTokens(Device& device, const TokenCounts& counts, const int32_t* slots, const int32_t* ids,
                 int64_t n) {
  Launch(AsCuda(device), {GridOf(n), dim3(kEditThreads), 0}, CountTokensKernel, counts, slots, ids, n);
}

void ApplyPenalties(Device& device, const TensorView& logits, const PenaltyRow* rows,
                    const TokenCounts& counts) {
  const Pieces pieces = MakePieces(logits.cols);
  Launch(AsCuda(device), {GridOf(logits.rows, pieces), dim3(kEditThreads), 0}, ApplyPenaltiesKernel,
         MakeMatrix(logits), rows, counts, MaskWords(counts.vocab), pieces);
}

}  // namespace somnus::SOMNUS_CUDA_NAMESPACE
