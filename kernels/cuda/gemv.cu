// Linear for 1 to 16 rows: bound by reading the weights once, n * k * size bytes; x and y are small beside
// the weights.
//
// bf16 and f16 go to the tensor cores even for one row: as registers hold them, 16 bytes of a weight's row
// are the B operands of two mma (16 rows of x by 8 columns of y by 16 of k) with no conversion, where plain
// arithmetic would unpack and multiply 8 values for each row of x. Within a line of k, lane t of a quad takes
// 8 neighbouring elements, and x's elements sit in the same lanes; that is not the order of k in the
// fragments' layout, but both operands have the same order, and so the sum is the same.
//
// Each warp makes a section of k (gemv_plan.h), so that another kernel can make the same sums for many rows.
//
// Bytes in flight: 8 loads of 16 bytes a thread, 4 KiB a warp, 32 KiB a block; 2 or 3 blocks fit on a
// multiprocessor. At 3.35 TB/s and about 700 ns (both estimates for an H100) the memory needs some 18 KiB in
// flight per multiprocessor at the least, and two or three times that to be insensitive to gaps. Weights go
// past the first-level cache (no_allocate), so that x stays in that cache. On an H100 weights of 34 MB are
// read at 0.85 of copy bandwidth, of 1.2 GB at full copy bandwidth; blocks that stay and fill rings of shared
// memory by cp.async were at most 5 % faster (docs/gpu_verification.md).

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/gemv.h"
#include "kernels/cuda/gemv_plan.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/ptx.h"
#include "kernels/cuda_types.h"

namespace somnus::SOMNUS_CUDA_NAMESPACE {
namespace {

template <int kTiles, int kHalves>
struct GemvShared {
  float sums[kGemvWarps][kTiles][kHalves][8][kGemvTile];  // of each warp: [row of x][column of y]
};

// The part of the operands that one thread holds at a time: kLines lines of k, two vectors of each.
template <int kTiles>
constexpr int kLinesInFlight = 4 / kTiles;

// A thread's places in x and w. Rows and columns beyond the last are read as the last and never stored; rows
// of x beyond the last half-mma are zeros, as is k beyond the end.
template <typename T, int kTiles, int kHalves>
struct GemvOperands {
  static constexpr int kLines = kLinesInFlight<kTiles>;
  const T* w[kTiles];
  const T* x[kHalves];
  bool has_row[kHalves];
  uint4 w_part[kLines][2][kTiles];

  __device__ __forceinline__ GemvOperands(const LinearArgs& args, int lane) {
    const int group = lane / 4, offset = lane % 4 * 8;
    const int first = static_cast<int>(blockIdx.x) * kTiles * kGemvTile;
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      const int column = min(first + tile * kGemvTile + group, args.n - 1);
      w[tile] = static_cast<const T*>(args.w) + static_cast<int64_t>(column) * args.k + offset;
    }
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      const int row = half * 8 + group;
      has_row[half] = row < args.rows;
      x[half] = static_cast<const T*>(args.x) + (has_row[half] ? row : 0) * args.x_stride + offset;
    }
  }

  // Lines [line, line + kLines) of k; this lane's vectors of the section start below k_left. kWhole: all of
  // the lines lie within the section.
  template <bool kWhole>
  __device__ __forceinline__ void LoadWeights(int line, int k_left) {
#pragma unroll
    for (int i = 0; i < kLines; ++i) {
#pragma unroll
      for (int part = 0; part < 2; ++part) {
        const int at = (line + i) * kGemvLine + part * 32;
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
          w_part[i][part][tile] = kWhole || at < k_left ? LdGlobalEarly16(w[tile] + at) : uint4{0, 0, 0, 0};
        }
      }
    }
  }

  template <bool kWhole>
  __device__ __forceinline__ void MultiplyAdd(int line, int k_left, float (&sums)[kTiles][4]) const {
#pragma unroll
    for (int i = 0; i < kLines; ++i) {
#pragma unroll
      for (int part = 0; part < 2; ++part) {
        const int at = (line + i) * kGemvLine + part * 32;
        uint4 a[2] = {};
#pragma unroll
        for (int half = 0; half < kHalves; ++half) {
          if (has_row[half] && (kWhole || at < k_left))
            a[half] = *reinterpret_cast<const uint4*>(x[half] + at);
        }
        const uint32_t low[4] = {a[0].x, a[1].x, a[0].y, a[1].y};
        const uint32_t high[4] = {a[0].z, a[1].z, a[0].w, a[1].w};
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
          const uint4& b = w_part[i][part][tile];
          const uint32_t b_low[2] = {b.x, b.y}, b_high[2] = {b.z, b.w};
          Mma16816<T>(sums[tile], low, b_low);
          Mma16816<T>(sums[tile], high, b_high);
        }
      }
    }
  }
};

// Adds the warps' sums up, in the order of the warps, and stores the block's columns of y.
template <typename Out, int kTiles, int kHalves>
__device__ __forceinline__ void StoreSums(const LinearArgs& args, const float (&sums)[kTiles][4]) {
  auto& shared = SharedStorage<GemvShared<kTiles, kHalves>>();
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
  const int row = lane / 4, column = lane % 4 * 2;
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      *reinterpret_cast<float2*>(&shared.sums[warp][tile][half][row][column]) =
          make_float2(sums[tile][half * 2], sums[tile][half * 2 + 1]);
    }
  }
  __syncthreads();
  const int first = static_cast<int>(blockIdx.x) * kTiles * kGemvTile;
  for (int i = thread; i < kTiles * kHalves * 8 * kGemvTile; i += kGemvWarps * 32) {
    // Neighbouring threads store neighbouring columns of one row.
    const int y_column = first + i % (kTiles * kGemvTile), y_row = i / (kTiles * kGemvTile);
    if (y_row >= args.rows || y_column >= args.n) continue;
    float sum = 0;
#pragma unroll
    for (int w = 0; w < kGemvWarps; ++w) {
      sum += shared.sums[w][i % (kTiles * kGemvTile) / kGemvTile][y_row / 8][y_row % 8][i % kGemvTile];
    }
    if (args.bias != nullptr) sum += args.bias[y_column];
    static_cast<Out*>(args.y)[y_row * args.y_stride + y_column] = FromFloat<Out>(sum);
  }
}

// Block b makes columns [b * 8 * kTiles, ...) of y. k must be a multiple of 8, rows 16-byte aligned.
template <typename T, typename Out, int kTiles, int kHalves>
__global__ void __launch_bounds__(kGemvWarps * 32, 2) GemvKernel(LinearArgs args) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  constexpr int kLines = kLinesInFlight<kTiles>;
  GemvOperands<T, kTiles, kHalves> operands(args, lane);
  const int section = args.section_lines, end = min(args.k, (warp + 1) * section * kGemvLine);
  const int k_left = end - lane % 4 * 8;  // this lane's vectors start below k_left
  float sums[kTiles][4] = {};
  // Earlier kernels do not write weights: loads of weights may start while these kernels still run.
  bool waited = false;
  for (int line = warp * section; line * kGemvLine < end; line += kLines) {
    if ((line + kLines) * kGemvLine <= end) {
      operands.template LoadWeights<true>(line, k_left);
      if (!waited) GridDependencyWait();
      operands.template MultiplyAdd<true>(line, k_left, sums);
    } else {
      operands.template LoadWeights<false>(line, k_left);
      if (!waited) GridDependencyWait();
      operands.template MultiplyAdd<false>(line, k_left, sums);
    }
    waited = true;
  }
  if (!waited) GridDependencyWait();
  GridDependencyLaunch();
  StoreSums<Out, kTiles, kHalves>(args, sums);
}

// f32: a warp makes one column of y, and the lanes share k and add up in a fixed tree. True f32, which the
// tensor cores lack; 4 loads of 16 bytes a thread in flight, x from the first-level cache.
template <int kRows>
__global__ void __launch_bounds__(kGemvWarps * 32) GemvF32Kernel(LinearArgs args) {
  constexpr int kUnroll = 4;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int column = static_cast<int>(blockIdx.x) * kGemvWarps + warp;
  if (column >= args.n) return;
  const float* w = static_cast<const float*>(args.w) + static_cast<int64_t>(column) * args.k;
  const int first_row = static_cast<int>(blockIdx.y) * kRows, rows = min(kRows, args.rows - first_row);
  const float* x = static_cast<const float*>(args.x) + first_row * args.x_stride;
  float* y = static_cast<float*>(args.y) + first_row * args.y_stride;
  float sums[kRows] = {};
  for (int k = lane * 4; k < args.k; k += kUnroll * 128) {
    Vec<float, 4> w_part[kUnroll];
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) {
      const int at = k + i * 128;
      w_part[i] = at < args.k ? LoadVec<float, 4>(w + at) : Vec<float, 4>{};
    }
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      const float* x_row = x + min(row, rows - 1) * args.x_stride;
#pragma unroll
      for (int i = 0; i < kUnroll; ++i) {
        const int at = k + i * 128;
        if (at >= args.k) continue;
        const Vec<float, 4> x_part = LoadVec<float, 4>(x_row + at);
#pragma unroll
        for (int j = 0; j < 4; ++j) sums[row] = fmaf(w_part[i][j], x_part[j], sums[row]);
      }
    }
  }
  ButterflyEach(sums, 16, [](float a, float b) { return a + b; });
#pragma unroll
  for (int row = 0; row < kRows; ++row) {
    if (lane != 0 || row >= rows) continue;
    const float bias = args.bias == nullptr ? 0.0f : args.bias[column];
    y[row * args.y_stride + column] = sums[row] + bias;
  }
}

template <typename T, typename Out, int kTiles, int kHalves>
void LaunchGemv(CudaDevice& device, const GemvPlan& plan, const LinearArgs& args) {
  static_assert(sizeof(GemvShared<kTiles, kHalves>) == kGemvWarps * kTiles * kHalves * 64 * sizeof(float));
  Launch(device,
         {.grid = dim3(static_cast<unsigned>(plan.blocks)),
          .block = dim3(static_cast<unsigned>(plan.threads)),
          .shared_bytes = plan.shared_bytes,
          .overlaps_previous = true},
         GemvKernel<T, Out, kTiles, kHalves>, args);
}

template <typename T, typename Out, int kHalves>
void LaunchGemv(CudaDevice& device, const GemvPlan& plan, const LinearArgs& args) {
  if (plan.tiles == 1) return LaunchGemv<T, Out, 1, kHalves>(device, plan, args);
  if (plan.tiles == 2) return LaunchGemv<T, Out, 2, kHalves>(device, plan, args);
  LaunchGemv<T, Out, 4, kHalves>(device, plan, args);
}

void LaunchGemvF32(CudaDevice& device, const GemvF32Plan& plan, const LinearArgs& args) {
  const LaunchConfig config{
      .grid = dim3(static_cast<unsigned>(plan.blocks), static_cast<unsigned>(plan.groups)),
      .block = dim3(static_cast<unsigned>(plan.threads))};
  switch (plan.rows) {
    case 1:
      return Launch(device, config, GemvF32Kernel<1>, args);
    case 2:
      return Launch(device, config, GemvF32Kernel<2>, args);
    case 4:
      return Launch(device, config, GemvF32Kernel<4>, args);
    default:
      return Launch(device, config, GemvF32Kernel<8>, args);
  }
}

}  // namespace

LinearArgs MakeLinearArgs(const TensorView& x, const LinearWeight& w, const float* bias,
                          const TensorView& y) {
  return {.x = x.data,
          .w = w.data,
          .bias = bias,
          .y = y.data,
          .x_stride = x.stride,
          .y_stride = y.stride,
          .rows = static_cast<int32_t>(x.rows),
          .n = static_cast<int32_t>(w.n),
          .k = static_cast<int32_t>(w.k),
          .section_lines = static_cast<int32_t>(LinearSectionLines(w.k))};
}

void RunGemv(CudaDevice& device, const TensorView& x, const LinearWeight& w, const float* bias,
             const TensorView& y) {
  const LinearArgs args = MakeLinearArgs(x, w, bias, y);
  if (w.dtype == DataType::kF32) return LaunchGemvF32(device, PlanGemvF32(x.rows, w.n), args);
  const GemvPlan plan = PlanGemv(device.chip().num_sms, x.rows, w.n, w.k);
  DispatchAct(w.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    if constexpr (!std::is_same_v<T, float>) {
      const auto launch = [&](auto out) {
        using Out = typename decltype(out)::type;
        if (plan.halves == 1) return LaunchGemv<T, Out, 1>(device, plan, args);
        LaunchGemv<T, Out, 2>(device, plan, args);
      };
      if (y.dtype == DataType::kF32) return launch(TypeTag<float>{});
      launch(TypeTag<T>{});
    }
  });
}

}  // namespace somnus::SOMNUS_CUDA_NAMESPACE
