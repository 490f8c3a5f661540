// Adapters: two small products for each row that has an adapter; the arithmetic is in rows_impl.h.

#include <algorithm>

#include "kernels/cpu/cpu_device.h"
#include "kernels/ops.h"

namespace somnus::cpu {
namespace {

// Columns of y that stay in a core's L1 cache while the rows of B pass by.
constexpr int64_t kColumns = 512;

// The rank of the row's adapter; 0: none.
int64_t RankOf(const LoraWeights& adapters, int32_t slot) { return slot < 0 ? 0 : adapters.ranks[slot]; }

const char* RowOf(const void* matrices, const LoraWeights& adapters, int32_t slot, int64_t row,
                  int64_t cols) {
  return static_cast<const char*>(matrices) +
         (slot * adapters.max_rank + row) * cols * ElementBytes(adapters.dtype);
}

}  // namespace

void LoraAdd(Device& device, const TensorView& x, const LoraWeights& adapters, const int32_t* slots,
             const TensorView& hidden, const TensorView& y) {
  CpuDevice& cpu = AsCpu(device);
  int64_t num_ranks = 0;  // of all rows
  for (int64_t t = 0; t < x.rows; ++t) num_ranks += RankOf(adapters, slots[t]);
  if (num_ranks == 0) return;
  const int64_t max_rank = adapters.max_rank;
  cpu.ParallelFor(x.rows * max_rank, num_ranks * adapters.k / 4, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t t = i / max_rank, row = i % max_rank;
      if (row >= RankOf(adapters, slots[t])) continue;
      hidden.row<float>(t)[row] =
          cpu.kernels().dot(static_cast<const char*>(x.data) + t * x.stride * ElementBytes(x.dtype),
                            RowOf(adapters.a, adapters, slots[t], row, adapters.k), x.dtype, adapters.k);
    }
  });
  const int64_t pieces = (adapters.n + kColumns - 1) / kColumns;
  cpu.ParallelFor(x.rows * pieces, num_ranks * adapters.n / 4, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t t = i / pieces, first = i % pieces * kColumns;
      const int64_t count = std::min(kColumns, adapters.n - first);
      for (int64_t row = 0; row < RankOf(adapters, slots[t]); ++row) {
        const char* const b = RowOf(adapters.b, adapters, slots[t], row, adapters.n);
        cpu.kernels().add_scaled(y.row<float>(t) + first, hidden.row<float>(t)[row],
                                 b + first * ElementBytes(adapters.dtype), adapters.dtype, count);
      }
    }
  });
}

}  // namespace somnus::cpu
