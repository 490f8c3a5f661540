// Fused add + RMSNorm and add + LayerNorm, and the plain add. Bound by memory: per element, the residual is
// read and written (8 bytes), delta read, out written, each once; weights come from L2 after the first rows.
// A block takes a row, in one shape for any number of rows: enough threads for one row's latency (a decode of
// one token has nothing else to do), and at 512 threads 2-4 rows to a multiprocessor, 70-100 KB of loads in
// flight (computed, not measured).

#include <algorithm>
#include <type_traits>

#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/rows.h"

namespace somnus::SOMNUS_CUDA_NAMESPACE {
namespace {

template <typename T, typename D>
struct NormParams {
  float* residual;
  int64_t residual_stride;
  const D* delta;  // nullptr: none
  int64_t delta_stride;
  const float* weight;
  const float* bias;  // of LayerNorm; nullptr: none
  T* out;
  int64_t out_stride;
  int cols;
  float eps;
};

struct NormShared {
  float sums[32];
  float squares[32];
};

constexpr int kVector = 4;  // f32 moves 16 bytes, bf16 8: whole sectors for both

// out = (x - mean) * scale * weight + bias for one vector.
template <bool kLayerNorm, typename T, typename D, int kWidth>
__device__ inline void PutNormed(const NormParams<T, D>& p, T* out, int col, const float (&x)[kWidth],
                                 float mean, float scale, const Vec<float, kWidth>& weight) {
  Vec<float, kWidth> bias{};
  if (kLayerNorm && p.bias != nullptr) bias = LoadWide<kWidth>(p.bias + col);
  float y[kWidth];
#pragma unroll
  for (int j = 0; j < kWidth; ++j) {
    y[j] = kLayerNorm ? fmaf((x[j] - mean) * scale, weight[j], bias[j]) : RmsNormed(x[j], scale, weight[j]);
  }
  StoreFloats(out + col, y);
}

// x = residual + delta, written back.
template <typename T, typename D, int kPer>
__device__ inline void AddRow(const NormParams<T, D>& p, float (&x)[kPer][kVector]) {
  float* const residual = p.residual + blockIdx.x * p.residual_stride;
  const D* const delta = p.delta + blockIdx.x * p.delta_stride;
  const int step = blockDim.x * kVector;
  Vec<float, kVector> old[kPer];
  Vec<D, kVector> add[kPer];
#pragma unroll
  for (int i = 0; i < kPer; ++i) {
    const int col = threadIdx.x * kVector + i * step;
    old[i] = {};
    if (col < p.cols) old[i] = LoadWide<kVector>(residual + col);
    if (p.delta != nullptr && col < p.cols) add[i] = LoadWide<kVector>(delta + col);
  }
#pragma unroll
  for (int i = 0; i < kPer; ++i) {
    const int col = threadIdx.x * kVector + i * step;
#pragma unroll
    for (int j = 0; j < kVector; ++j) x[i][j] = old[i][j];
    if (p.delta == nullptr || col >= p.cols) continue;
#pragma unroll
    for (int j = 0; j < kVector; ++j) x[i][j] += ToFloat(add[i][j]);
    StoreFloats(residual + col, x[i]);
  }
}

// The row stays in registers: kPer vectors a thread.
template <bool kLayerNorm, int kPer, typename T, typename D>
__global__ void __launch_bounds__(kNormThreads) NormKernel(NormParams<T, D> p) {
  NormShared& shared = SharedStorage<NormShared>();
  const int step = blockDim.x * kVector;
  // No kernel writes weights, so weights may be on their way before the previous kernel has finished.
  Vec<float, kVector> weight[kPer];
#pragma unroll
  for (int i = 0; i < kPer; ++i) {
    const int col = threadIdx.x * kVector + i * step;
    weight[i] = {};
    if (col < p.cols) weight[i] = LoadWide<kVector>(p.weight + col);
  }
  JoinStream();
  float x[kPer][kVector];
  AddRow(p, x);
  float mean = 0;
  if (kLayerNorm) {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < kPer; ++i) {
#pragma unroll
      for (int j = 0; j < kVector; ++j) sum += x[i][j];
    }
    mean = BlockSum(sum, shared.sums) / p.cols;
  }
  float squares = 0;
#pragma unroll
  for (int i = 0; i < kPer; ++i) {
    if (kLayerNorm && static_cast<int>(threadIdx.x) * kVector + i * step >= p.cols) continue;
#pragma unroll
    for (int j = 0; j < kVector; ++j) squares = AddSquare(squares, x[i][j] - mean);
  }
  const float scale = NormScale(squares, p.cols, p.eps, shared.squares);
  T* const out = p.out + blockIdx.x * p.out_stride;
#pragma unroll
  for (int i = 0; i < kPer; ++i) {
    const int col = threadIdx.x * kVector + i * step;
    if (col < p.cols) PutNormed<kLayerNorm>(p, out, col, x[i], mean, scale, weight[i]);
  }
}

// Any width and alignment, element by element; a thread reads its written values again, from L1 or L2.
template <bool kLayerNorm, typename T, typename D>
__global__ void __launch_bounds__(kNormThreads) NormLoopKernel(NormParams<T, D> p) {
  JoinStream();
  NormShared& shared = SharedStorage<NormShared>();
  float* const residual = p.residual + blockIdx.x * p.residual_stride;
  const D* const delta = p.delta + blockIdx.x * p.delta_stride;
  float sum = 0, squares = 0, mean = 0;
  for (int col = threadIdx.x; col < p.cols; col += blockDim.x) {
    float x = residual[col];
    if (p.delta != nullptr) residual[col] = x += ToFloat(delta[col]);
    sum += x;
    squares = AddSquare(squares, x);
  }
  if (kLayerNorm) {
    mean = BlockSum(sum, shared.sums) / p.cols;
    squares = 0;
    for (int col = threadIdx.x; col < p.cols; col += blockDim.x) {
      squares = AddSquare(squares, residual[col] - mean);
    }
  }
  const float scale = NormScale(squares, p.cols, p.eps, shared.squares);
  T* const out = p.out + blockIdx.x * p.out_stride;
  for (int col = threadIdx.x; col < p.cols; col += blockDim.x) {
    const float x[1] = {residual[col]};
    PutNormed<kLayerNorm>(p, out, col, x, mean, scale, LoadWide<1>(p.weight + col));
  }
}

template <bool kLayerNorm, typename T, typename D>
void LaunchNorm(CudaDevice& device, int64_t rows, bool vectors, const NormParams<T, D>& p) {
  const NormPlan plan = PlanNorm(p.cols, vectors);
  const LaunchConfig config = RowsConfig(rows, plan.threads, sizeof(NormShared));
  switch (plan.per_thread) {
    case 2:
      return Launch(device, config, NormKernel<kLayerNorm, 2, T, D>, p);
    case 4:
      return Launch(device, config, NormKernel<kLayerNorm, 4, T, D>, p);
    case 8:
      return Launch(device, config, NormKernel<kLayerNorm, 8, T, D>, p);
    default:
      return Launch(device, config, NormLoopKernel<kLayerNorm, T, D>, p);
  }
}

// T and D are the types of an act and a sum, or either is f32: a stream that is normalized itself (OPT-350m).
template <bool kLayerNorm, typename T, typename D>
void AddNormAs(TypeTag<T>, TypeTag<D>, CudaDevice& device, const TensorView& residual,
               const TensorView& delta, const float* weight, const float* bias, double eps,
               const TensorView& out) {
  if constexpr (std::is_same_v<T, D> || std::is_same_v<T, float> || std::is_same_v<D, float>) {
    const bool vectors = TakesVectors(kVector, out.cols, {residual, out}) &&
                         (delta.data == nullptr || TakesVectors(kVector, out.cols, {delta})) &&
                         IsAlignedTo(weight, 16) && IsAlignedTo(bias, 16);
    const NormParams<T, D> params{.residual = residual.row<float>(0),
                                  .residual_stride = residual.stride,
                                  .delta = delta.row<const D>(0),
                                  .delta_stride = delta.data == nullptr ? 0 : delta.stride,
                                  .weight = weight,
                                  .bias = bias,
                                  .out = out.row<T>(0),
                                  .out_stride = out.stride,
                                  .cols = static_cast<int>(out.cols),
                                  .eps = static_cast<float>(eps)};
    LaunchNorm<kLayerNorm>(device, out.rows, vectors, params);
  }
}

template <bool kLayerNorm>
void AddNorm(Device& device, const TensorView& residual, const TensorView& delta, const float* weight,
             const float* bias, double eps, const TensorView& out) {
  if (out.rows == 0 || out.cols == 0) return;
  DispatchAct(out.dtype, [&](auto tag) {
    DispatchAct(delta.data == nullptr ? DataType::kF32 : delta.dtype, [&](auto delta_tag) {
      AddNormAs<kLayerNorm>(tag, delta_tag, AsCuda(device), residual, delta, weight, bias, eps, out);
    });
  });
}

// x = x / rms(x) * weight in place, or the half of that before or after ranks add up their squares. A thread
// reads its own elements again, from L1 or L2.
template <typename T>
struct InPlaceNormParams {
  T* x;
  int64_t stride;
  float* squares;  // [rows], `squares_stride` apart; nullptr: of the row alone
  int64_t squares_stride;
  const float* weight;  // nullptr: only the squares are wanted
  int cols;
  int64_t width;  // the columns that the squares are of
  float eps;
};

template <typename T>
__global__ void __launch_bounds__(kNormThreads) InPlaceNormKernel(InPlaceNormParams<T> p) {
  JoinStream();
  NormShared& shared = SharedStorage<NormShared>();
  T* const x = p.x + blockIdx.x * p.stride;
  float* const squares = p.squares == nullptr ? nullptr : p.squares + blockIdx.x * p.squares_stride;
  float sum = 0;
  if (squares == nullptr || p.weight == nullptr) {
    for (int col = threadIdx.x; col < p.cols; col += blockDim.x) sum = AddSquare(sum, ToFloat(x[col]));
    sum = BlockSum(sum, shared.squares);
  } else {
    sum = *squares;
  }
  if (p.weight == nullptr) {
    if (threadIdx.x == 0) *squares = sum;
    return;
  }
  const float scale = rsqrtf(sum / static_cast<float>(p.width) + p.eps);
  for (int col = threadIdx.x; col < p.cols; col += blockDim.x)
    x[col] = FromFloat<T>(RmsNormed(ToFloat(x[col]), scale, p.weight[col]));
}

void NormInPlace(Device& device, const TensorView& x, const TensorView& squares, int64_t width,
                 const float* weight, double eps) {
  if (x.rows == 0 || (x.cols == 0 && weight != nullptr)) return;
  DispatchAct(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const InPlaceNormParams<T> params{.x = x.row<T>(0),
                                      .stride = x.stride,
                                      .squares = static_cast<float*>(squares.data),
                                      .squares_stride = squares.stride,
                                      .weight = weight,
                                      .cols = static_cast<int>(x.cols),
                                      .width = width,
                                      .eps = static_cast<float>(eps)};
    const LaunchConfig config = RowsConfig(
        x.rows, PlanNorm(std::max<int64_t>(x.cols, 1), /*vectors=*/false).threads, sizeof(NormShared));
    Launch(AsCuda(device), config, InPlaceNormKernel<T>, params);
  });
}

// residual += delta: reads 4 + sizeof(D) bytes an element, writes 4.
template <typename D, int kWide>
struct AddOp {
  static constexpr int kWidth = kWide;
  struct Row {
    float* residual;
    const D* delta;
  };
  struct Loaded {
    Vec<float, kWidth> residual;
    Vec<D, kWidth> delta;
  };

  float* residual;
  int64_t residual_stride;
  const D* delta;
  int64_t delta_stride;

  __device__ Row At(int64_t row) const {
    return {residual + row * residual_stride, delta + row * delta_stride};
  }
  __device__ Loaded Load(const Row& row, int col) const {
    return {LoadWide<kWidth>(row.residual + col), LoadWide<kWidth>(row.delta + col)};
  }
  __device__ void Store(const Row& row, int col, Loaded x) const {
#pragma unroll
    for (int j = 0; j < kWidth; ++j) x.residual[j] += ToFloat(x.delta[j]);
    StoreVec(row.residual + col, x.residual);
  }
};

}  // namespace

void AddRmsNorm(Device& device, const TensorView& residual, const TensorView& delta, const float* weight,
                double eps, const TensorView& out) {
  AddNorm<false>(device, residual, delta, weight, nullptr, eps, out);
}

void AddLayerNorm(Device& device, const TensorView& residual, const TensorView& delta, const float* weight,
                  const float* bias, double eps, const TensorView& out) {
  AddNorm<true>(device, residual, delta, weight, bias, eps, out);
}

void RmsNorm(Device& device, const TensorView& x, const float* weight, double eps) {
  NormInPlace(device, x, {}, x.cols, weight, eps);
}

void SumSquares(Device& device, const TensorView& x, const TensorView& squares) {
  NormInPlace(device, x, squares, x.cols, nullptr, 0);
}

void RmsNormBySquares(Device& device, const TensorView& x, const TensorView& squares, int64_t width,
                      const float* weight, double eps) {
  NormInPlace(device, x, squares, width, weight, eps);
}

void Add(Device& device, const TensorView& residual, const TensorView& delta) {
  if (residual.rows == 0 || residual.cols == 0) return;
  const bool vectors = TakesVectors(kVector, residual.cols, {residual, delta});
  DispatchAct(delta.dtype, [&](auto tag) {
    using D = typename decltype(tag)::type;
    const auto add = [&](auto op) {
      op = {residual.row<float>(0), residual.stride, delta.row<const D>(0), delta.stride};
      LaunchElements<2>(AsCuda(device), op, residual.rows, residual.cols);
    };
    vectors ? add(AddOp<D, kVector>{}) : add(AddOp<D, 1>{});
  });
}

}  // namespace somnus::SOMNUS_CUDA_NAMESPACE
