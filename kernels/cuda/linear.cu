// Linear: chooses between our kernels and the library; and the weights.

#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/gemm.h"
#include "kernels/cuda/gemv.h"
#include "kernels/cuda/gemv_plan.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/ptx.h"
#include "kernels/cuda/weight_uploader.h"
#include "kernels/cuda_types.h"

namespace somnus::SOMNUS_CUDA_NAMESPACE {
namespace {

constexpr int kPlainTile = 32;      // rows and columns of y that a block makes, and elements of k at a time
constexpr int kPlainThreads = 256;  // 16 by 16, each makes 2 by 2

struct PlainShared {
  // A column more than needed: threads that read down a column then meet different banks.
  float x[kPlainTile][kPlainTile + 1];
  float w[kPlainTile][kPlainTile + 1];
};

struct PlainArgs {
  const void* x;
  const void* w;
  const float* bias;
  void* y;
  int64_t rows, n, k;
  int64_t x_stride, y_stride;
};

// A tile of [rows, k] as f32, zeros beyond the ends.
template <typename T>
__device__ void LoadPlainTile(const T* from, int64_t stride, int64_t rows, int64_t k, int64_t row_begin,
                              int64_t k_begin, float (&tile)[kPlainTile][kPlainTile + 1]) {
  for (int i = static_cast<int>(threadIdx.x); i < kPlainTile * kPlainTile; i += kPlainThreads) {
    const int64_t row = row_begin + i / kPlainTile, at = k_begin + i % kPlainTile;
    tile[i / kPlainTile][i % kPlainTile] = row < rows && at < k ? ToFloat(from[row * stride + at]) : 0.0f;
  }
}

// y = x * w^T + bias for every shape and alignment, element by element: for products that neither the library
// nor the GEMV takes (odd k, which few models have, and k of 0). Reads x n/32 times and w rows/32 times;
// bound by scalar loads.
template <typename T, typename Out>
__global__ void __launch_bounds__(kPlainThreads, 4) PlainLinearKernel(PlainArgs args) {
  auto& shared = SharedStorage<PlainShared>();
  const int64_t first_n = static_cast<int64_t>(blockIdx.x) * kPlainTile;
  const int64_t first_row = static_cast<int64_t>(blockIdx.y) * kPlainTile;
  const int tx = static_cast<int>(threadIdx.x) % 16, ty = static_cast<int>(threadIdx.x) / 16;
  float sums[2][2] = {};
  for (int64_t k = 0; k < args.k; k += kPlainTile) {
    LoadPlainTile(static_cast<const T*>(args.x), args.x_stride, args.rows, args.k, first_row, k, shared.x);
    LoadPlainTile(static_cast<const T*>(args.w), args.k, args.n, args.k, first_n, k, shared.w);
    __syncthreads();
    for (int i = 0; i < kPlainTile; ++i) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          sums[r][c] = fmaf(shared.x[ty + 16 * r][i], shared.w[tx + 16 * c][i], sums[r][c]);
        }
      }
    }
    __syncthreads();
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const int64_t row = first_row + ty + 16 * r, column = first_n + tx + 16 * c;
      if (row >= args.rows || column >= args.n) continue;
      const float bias = args.bias == nullptr ? 0.0f : args.bias[column];
      static_cast<Out*>(args.y)[row * args.y_stride + column] = FromFloat<Out>(sums[r][c] + bias);
    }
  }
}

constexpr int kBiasThreads = 256;

// Makes a bias that the library takes: aligned, of y's type. Some kilobytes.
template <typename T>
__global__ void __launch_bounds__(kBiasThreads) ConvertBiasKernel(const float* bias, T* out, int64_t n) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kBiasThreads + threadIdx.x;
  if (i < n) out[i] = FromFloat<T>(bias[i]);
}

unsigned CeilBlocks(int64_t n, int64_t per_block) {
  return static_cast<unsigned>((n + per_block - 1) / per_block);
}

// As many rows as a grid's y dimension allows.
constexpr int64_t kMaxPlainRows = int64_t{65535} * kPlainTile;

void RunPlain(CudaDevice& device, const TensorView& x, const LinearWeight& w, const float* bias,
              const TensorView& y) {
  DispatchAct(w.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    for (int64_t row = 0; row < x.rows; row += kMaxPlainRows) {
      const int64_t rows = std::min(kMaxPlainRows, x.rows - row);
      const LaunchConfig config{.grid = dim3(CeilBlocks(w.n, kPlainTile), CeilBlocks(rows, kPlainTile)),
                                .block = dim3(kPlainThreads),
                                .shared_bytes = sizeof(PlainShared)};
      PlainArgs args{x.row<T>(row), w.data, bias, nullptr, rows, w.n, w.k, x.stride, y.stride};
      if (y.dtype == DataType::kF32) {
        args.y = y.row<float>(row);
        Launch(device, config, PlainLinearKernel<T, float>, args);
      } else {
        args.y = y.row<T>(row);
        Launch(device, config, PlainLinearKernel<T, T>, args);
      }
    }
  });
}

constexpr int64_t kWorkspaceAlignment = 256;
int64_t RoundUpWorkspace(int64_t bytes) {
  return (bytes + kWorkspaceAlignment - 1) / kWorkspaceAlignment * kWorkspaceAlignment;
}

bool IsAligned16(const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; }

// Bytes in front of the library's workspace for a bias of y's type.
int64_t BiasBytes(DataType y, int64_t n) { return RoundUpWorkspace(n * SizeOf(y)); }

// Prepares a product by the library. The library's epilogue adds a bias of y's type alone: an f32 bias of a
// bf16 sum is rounded to bf16 first, as the weights were (exact for checkpoints of that type). On an H100
// some of the library's kernels round the sum, too, before adding the bias.
absl::StatusOr<GemmCall> PrepareGemm(CudaDevice& device, const TensorView& x, const LinearWeight& w,
                                     const float* bias, const TensorView& y) {
  GemmCall call{.x = x,
                .w = w,
                .bias = bias,
                .y = y,
                .workspace = device.workspace(),
                .workspace_bytes = device.workspace_bytes()};
  if (bias != nullptr && (y.dtype != DataType::kF32 || !IsAligned16(bias))) {
    const int64_t bytes = BiasBytes(y.dtype, w.n);
    if (bytes > call.workspace_bytes) return absl::InternalError("the workspace has no room for a bias");
    const LaunchConfig config{.grid = dim3(CeilBlocks(w.n, kBiasThreads)), .block = dim3(kBiasThreads)};
    DispatchAct(y.dtype, [&](auto tag) {
      using T = typename decltype(tag)::type;
      Launch(device, config, ConvertBiasKernel<T>, bias, reinterpret_cast<T*>(call.workspace), w.n);
    });
    call.bias = call.workspace;
    call.workspace += bytes;
    call.workspace_bytes -= bytes;
  }
  return call;
}

absl::Status RunGemm(CudaDevice& device, const TensorView& x, const LinearWeight& w, const float* bias,
                     const TensorView& y) {
  const absl::StatusOr<GemmCall> call = PrepareGemm(device, x, w, bias, y);
  return call.ok() ? device.gemm()->Run(device, *call) : call.status();
}

// Enough weights that a round leaves nothing of the first weight in the L2 cache: that weight is read again
// only after all weights have passed through the cache. No more than needed, for time's sake.
constexpr int64_t kMaxTuneWeights = 16;
absl::StatusOr<std::vector<GemmCall>> CallsToMeasure(CudaDevice& device, const TensorView& x,
                                                     const LinearWeight* weights, int64_t num_weights,
                                                     const float* bias, const TensorView& y) {
  std::vector<GemmCall> calls;
  int64_t bytes = 0;
  for (int64_t i = 0; i < std::min(num_weights, kMaxTuneWeights); ++i) {
    if (bytes > 2 * device.chip().l2_bytes) break;
    absl::StatusOr<GemmCall> call = PrepareGemm(device, x, weights[i], bias, y);
    if (!call.ok()) return call.status();
    if (!calls.empty() && !(KeyOf(*call) == KeyOf(calls.front())))
      continue;  // this weight's address is
                 // aligned less
    calls.push_back(*call);
    bytes += weights[i].n * weights[i].k * SizeOf(weights[i].dtype);
  }
  return calls;
}

// Returns whether our own kernels make the products of every number of rows, as with batch invariance and
// without the library.
bool OwnKernelsAlone(const CudaDevice& device) {
  return device.batch_invariant() || device.gemm() == nullptr;
}

LinearShape ShapeOf(const CudaDevice& device, const TensorView& x, const LinearWeight& w) {
  const int64_t width = 16 / SizeOf(w.dtype);
  // The stride of a single row means nothing, except where the row must be computed as in a larger batch.
  const bool any_stride = x.rows == 1 && !OwnKernelsAlone(device);
  const bool vectors =
      IsAligned16(x.data) && IsAligned16(w.data) && w.k % width == 0 && (any_stride || x.stride % width == 0);
  return {x.rows, w.n, w.k, w.dtype, vectors};
}

}  // namespace

void Linear(Device& device, const TensorView& x, const LinearWeight& w, const float* bias,
            const TensorView& y) {
  CudaDevice& cuda = AsCuda(device);
  switch (RouteLinear(ShapeOf(cuda, x, w), OwnKernelsAlone(cuda))) {
    case LinearRoute::kNothing:
      return;
    case LinearRoute::kGemv:
      return RunGemv(cuda, x, w, bias, y);
    case LinearRoute::kTiles:
      return RunLinearTiles(cuda, x, w, bias, y);
    case LinearRoute::kPlain:
      return RunPlain(cuda, x, w, bias, y);
    case LinearRoute::kGemm: {
      const absl::Status status = RunGemm(cuda, x, w, bias, y);
      if (absl::IsUnimplemented(status)) return RunPlain(cuda, x, w, bias, y);
      if (!status.ok()) cuda.Record(status);
    }
  }
}

bool TuneLinear(Device& device, const TensorView& x, const LinearWeight* weights, int64_t num_weights,
                const float* bias, const TensorView& y) {
  CudaDevice& cuda = AsCuda(device);
  if (num_weights == 0) return false;
  if (RouteLinear(ShapeOf(cuda, x, weights[0]), OwnKernelsAlone(cuda)) != LinearRoute::kGemm) return false;
  if (cuda.capturing()) {
    cuda.Record(absl::FailedPreconditionError("products cannot be measured while a graph is captured"));
    return false;
  }
  const absl::StatusOr<std::vector<GemmCall>> calls = CallsToMeasure(cuda, x, weights, num_weights, bias, y);
  const int64_t before = cuda.gemm()->stats().measured;
  const absl::Status status = calls.ok() ? cuda.gemm()->Tune(cuda, *calls) : calls.status();
  if (!status.ok() && !absl::IsUnimplemented(status)) cuda.Record(status);
  return cuda.gemm()->stats().measured > before;
}

int64_t LinearWorkspaceBytes(const CudaDevice& device, const OpsLimits& limits) {
  if (device.gemm() == nullptr) return 0;
  return BiasBytes(DataType::kF32, std::max(limits.max_n, limits.vocab_size)) +
         device.gemm()->WorkspaceBytes();
}

void PackWeightRows(const Device& device, const LinearWeight& weight, int64_t row_begin, int64_t num_rows,
                    const float* rows) {
  AsCuda(device).weight_uploader().UploadRows(weight, row_begin, num_rows, rows);
}

void PackVector(const Device& device, float* data, const float* values, int64_t n) {
  AsCuda(device).weight_uploader().UploadBytes(data, values, n * static_cast<int64_t>(sizeof(float)));
}

}  // namespace somnus::SOMNUS_CUDA_NAMESPACE
