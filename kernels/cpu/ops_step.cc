// A step's inputs, and small copies between ops: a few kilobytes, on the caller's thread.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/cpu/cpu_device.h"
#include "kernels/ops.h"

namespace somnus::cpu {

void FillZero(Device& device, const TensorView& out) {
  const int64_t bytes = out.cols * SizeOf(out.dtype), stride = out.stride * SizeOf(out.dtype);
  for (int64_t r = 0; r < out.rows; ++r)
    std::memset(static_cast<char*>(out.data) + r * stride, 0, static_cast<size_t>(bytes));
}

void EditBlockTables(Device& device, const BlockTableEdit* edits, int64_t n, int32_t* tables,
                     int64_t max_blocks_per_seq) {
  for (int64_t i = 0; i < n; ++i)
    tables[edits[i].slot * max_blocks_per_seq + edits[i].index] = edits[i].block_id;
}

void GatherBlockTables(Device& device, const int32_t* tables, const int32_t* slots,
                       const int32_t* context_len, int64_t n, int64_t max_blocks_per_seq, int64_t block_size,
                       int32_t* out) {
  for (int64_t i = 0; i < n; ++i) {
    std::copy_n(tables + slots[i] * max_blocks_per_seq, (context_len[i] + block_size - 1) / block_size,
                out + i * max_blocks_per_seq);
  }
}

void ResolveTokens(Device& device, int32_t* ids, int64_t n, const int32_t* values) {
  for (int64_t i = 0; i < n; ++i) {
    if (ids[i] < 0) ids[i] = std::max(0, values[-1 - ids[i]]);
  }
}

void ScatterTokens(Device& device, const int32_t* slots, const int32_t* tokens, int64_t n, int32_t* values) {
  for (int64_t i = 0; i < n; ++i) {
    if (slots[i] >= 0) values[slots[i]] = tokens[i];
  }
}

void CopyMatrix(Device& device, const TensorView& x, const TensorView& out) {
  AsCpu(device).ParallelFor(x.rows, x.rows * x.cols / 8, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r)
      std::memcpy(out.row<float>(r), x.row<float>(r), static_cast<size_t>(x.cols) * sizeof(float));
  });
}

void CombineArgMax(Device& device, const ScoredToken* all, int64_t num_ranks, int64_t num_rows,
                   int32_t* tokens) {
  for (int64_t r = 0; r < num_rows; ++r) {
    ScoredToken best = all[r];
    for (int64_t rank = 1; rank < num_ranks; ++rank) {
      const ScoredToken& other = all[rank * num_rows + r];
      if (std::isnan(other.value) || other.value > best.value) best = other;
    }
    tokens[r] = std::isfinite(best.value) ? best.id : kLogitsNotFinite;
  }
}

}  // namespace somnus::cpu
