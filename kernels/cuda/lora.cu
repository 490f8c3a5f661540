// Adapters: two small products for each row that has an adapter. A row without an adapter is left alone, and
// costs the start of its blocks; so graphs hold these kernels for any mixture of rows.

#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/rows.h"

namespace somnus::SOMNUS_CUDA_NAMESPACE {
namespace {

constexpr int kShrinkWarps = 4;
constexpr int kExpandThreads = 256;

// hidden[t][r] = x[t] * A[r]: a warp takes one r. Reads A once for each row of x that has the adapter.
template <typename T>
__global__ void __launch_bounds__(kShrinkWarps* kWarpThreads)
    Shrink(const T* x, int64_t x_stride, const T* a, const int32_t* ranks, const int32_t* slots,
           int64_t max_rank, int64_t k, float* hidden, int64_t hidden_stride) {
  JoinStream();
  const int64_t t = blockIdx.x;
  const int row = static_cast<int>(blockIdx.y) * kShrinkWarps + static_cast<int>(threadIdx.x) / kWarpThreads;
  const int32_t slot = slots[t];
  if (slot < 0 || row >= ranks[slot]) return;  // the same in all threads of a warp
  const T* const weights = a + (slot * max_rank + row) * k;
  float sum = 0.0f;
  for (int64_t i = threadIdx.x % kWarpThreads; i < k; i += kWarpThreads)
    sum = fmaf(ToFloat(x[t * x_stride + i]), ToFloat(weights[i]), sum);
  sum = GroupSum(sum, kWarpThreads);
  if (threadIdx.x % kWarpThreads == 0) hidden[t * hidden_stride + row] = sum;
}

// y[t] += hidden[t] * B: a thread takes one column.
template <typename T, typename S>
__global__ void __launch_bounds__(kExpandThreads)
    Expand(const float* hidden, int64_t hidden_stride, const T* b, const int32_t* ranks, const int32_t* slots,
           int64_t max_rank, int64_t n, S* y, int64_t y_stride) {
  JoinStream();
  const int64_t t = blockIdx.x, column = int64_t{blockIdx.y} * kExpandThreads + threadIdx.x;
  const int32_t slot = slots[t];
  if (slot < 0 || column >= n) return;
  const int rank = ranks[slot];
  if (rank == 0) return;
  const T* const weights = b + slot * max_rank * n + column;
  float sum = ToFloat(y[t * y_stride + column]);
  for (int row = 0; row < rank; ++row)
    sum = fmaf(hidden[t * hidden_stride + row], ToFloat(weights[row * n]), sum);
  y[t * y_stride + column] = FromFloat<S>(sum);
}

LaunchConfig Config(int64_t rows, int64_t pieces, int threads) {
  return {.grid = dim3(static_cast<unsigned>(rows), static_cast<unsigned>(pieces)),
          .block = dim3(static_cast<unsigned>(threads)),
          .overlaps_previous = true};
}

}  // namespace

void LoraAdd(Device& device, const TensorView& x, const LoraWeights& adapters, const int32_t* slots,
             const TensorView& hidden, const TensorView& y) {
  if (x.rows == 0 || adapters.n == 0 || adapters.k == 0) return;
  DispatchAct(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const auto* const a = static_cast<const T*>(adapters.a);
    const auto* const b = static_cast<const T*>(adapters.b);
    Launch(AsCuda(device),
           Config(x.rows, CeilDiv(adapters.max_rank, kShrinkWarps), kShrinkWarps * kWarpThreads), Shrink<T>,
           x.row<const T>(0), x.stride, a, adapters.ranks, slots, adapters.max_rank, adapters.k,
           hidden.row<float>(0), hidden.stride);
    const LaunchConfig config = Config(x.rows, CeilDiv(adapters.n, kExpandThreads), kExpandThreads);
    const auto expand = [&](auto out) {
      using S = typename decltype(out)::type;
      Launch(AsCuda(device), config, Expand<T, S>, hidden.row<const float>(0), hidden.stride, b,
             adapters.ranks, slots, adapters.max_rank, adapters.n, y.row<S>(0), y.stride);
    };
    y.dtype == DataType::kF32 ? expand(TypeTag<float>{}) : expand(tag);
  });
}

}  // namespace somnus::SOMNUS_CUDA_NAMESPACE
