// Norms, activations and row copies: splits the rows over threads; the arithmetic is in rows_impl.h.

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/cpu/cpu_device.h"
#include "kernels/ops.h"

namespace somnus::cpu {
namespace {

NormArgs MakeNormArgs(const TensorView& residual, const TensorView& delta, const float* weight,
                      const float* bias, double eps, const TensorView& out) {
  return {.residual = static_cast<float*>(residual.data),
          .residual_stride = residual.stride,
          .delta = static_cast<const float*>(delta.data),
          .delta_stride = delta.stride,
          .weight = weight,
          .bias = bias,
          .out = static_cast<char*>(out.data),
          .out_stride = out.stride,
          .out_type = out.dtype,
          .cols = out.cols,
          .eps = static_cast<float>(eps)};
}

ActivationArgs MakeActivationArgs(const TensorView& x, const TensorView& out) {
  return {.x = static_cast<const float*>(x.data),
          .x_stride = x.stride,
          .out = static_cast<char*>(out.data),
          .out_stride = out.stride,
          .out_type = out.dtype,
          .cols = out.cols};
}

}  // namespace

void AddPositionEmbedding(Device& device, const int32_t* positions, const TensorView& table, int64_t offset,
                          const TensorView& out) {
  CpuDevice& cpu = AsCpu(device);
  cpu.ParallelFor(out.rows, out.rows * out.cols / 4, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      cpu.kernels().add(out.row<float>(t), table.row<float>(positions[t] + offset), out.cols);
    }
  });
}

void AddRmsNorm(Device& device, const TensorView& residual, const TensorView& delta, const float* weight,
                double eps, const TensorView& out) {
  CpuDevice& cpu = AsCpu(device);
  const NormArgs args = MakeNormArgs(residual, delta, weight, nullptr, eps, out);
  cpu.ParallelFor(out.rows, out.rows * out.cols / 3,
                  [&](int64_t begin, int64_t end) { cpu.kernels().rms_norm(args, begin, end); });
}

void AddLayerNorm(Device& device, const TensorView& residual, const TensorView& delta, const float* weight,
                  const float* bias, double eps, const TensorView& out) {
  CpuDevice& cpu = AsCpu(device);
  const NormArgs args = MakeNormArgs(residual, delta, weight, bias, eps, out);
  cpu.ParallelFor(out.rows, out.rows * out.cols / 3,
                  [&](int64_t begin, int64_t end) { cpu.kernels().layer_norm(args, begin, end); });
}

void RmsNorm(Device& device, const TensorView& x, const float* weight, double eps) {
  cpu::AddRmsNorm(device, x, TensorView{}, weight, eps, x);  // sums are f32 here
}

void SumSquares(Device& device, const TensorView& x, const TensorView& squares) {
  CpuDevice& cpu = AsCpu(device);
  cpu.ParallelFor(x.rows, x.rows * x.cols / 6, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t)
      *squares.row<float>(t) = cpu.kernels().sum_squares(x.row<float>(t), x.cols);
  });
}

void RmsNormBySquares(Device& device, const TensorView& x, const TensorView& squares, int64_t width,
                      const float* weight, double eps) {
  CpuDevice& cpu = AsCpu(device);
  cpu.ParallelFor(x.rows, x.rows * x.cols / 6, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const float mean = *squares.row<float>(t) / static_cast<float>(width);
      const float scale = 1.0f / std::sqrt(mean + static_cast<float>(eps));
      cpu.kernels().scale_by(x.row<float>(t), x.cols, scale, weight);
    }
  });
}

void ScaleAndCap(Device& device, const TensorView& x, float factor, float softcap) {
  CpuDevice& cpu = AsCpu(device);
  const int64_t cost = softcap > 0 ? x.rows * x.cols * 2 : x.rows * x.cols / 6;
  cpu.ParallelFor(x.rows, cost, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t)
      cpu.kernels().scale_and_cap(x.row<float>(t), x.cols, factor, softcap);
  });
}

void Add(Device& device, const TensorView& residual, const TensorView& delta) {
  CpuDevice& cpu = AsCpu(device);
  cpu.ParallelFor(residual.rows, residual.rows * residual.cols / 6, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t)
      cpu.kernels().add(residual.row<float>(t), delta.row<float>(t), residual.cols);
  });
}

void SiluAndMul(Device& device, const TensorView& gate_up, const TensorView& out) {
  CpuDevice& cpu = AsCpu(device);
  const ActivationArgs args = MakeActivationArgs(gate_up, out);
  cpu.ParallelFor(out.rows, out.rows * out.cols * 2,
                  [&](int64_t begin, int64_t end) { cpu.kernels().silu_and_mul(args, begin, end); });
}

void GeluTanhAndMul(Device& device, const TensorView& gate_up, const TensorView& out) {
  CpuDevice& cpu = AsCpu(device);
  const ActivationArgs args = MakeActivationArgs(gate_up, out);
  cpu.ParallelFor(out.rows, out.rows * out.cols * 2,
                  [&](int64_t begin, int64_t end) { cpu.kernels().gelu_tanh_and_mul(args, begin, end); });
}

void ClampedSwigluAndMul(Device& device, const TensorView& gate_up, const ClampedSwiglu& unit,
                         const TensorView& out) {
  CpuDevice& cpu = AsCpu(device);
  const ActivationArgs args = MakeActivationArgs(gate_up, out);
  cpu.ParallelFor(out.rows, out.rows * out.cols * 2, [&](int64_t begin, int64_t end) {
    cpu.kernels().clamped_swiglu_and_mul(args, unit, begin, end);
  });
}

void Activate(Device& device, const TensorView& x, UnaryActivation f, const TensorView& out) {
  CpuDevice& cpu = AsCpu(device);
  const ActivationArgs args = MakeActivationArgs(x, out);
  cpu.ParallelFor(out.rows, out.rows * out.cols * 2,
                  [&](int64_t begin, int64_t end) { cpu.kernels().activate(args, f, begin, end); });
}

void GatherRows(Device& device, const TensorView& x, const int32_t* rows, const TensorView& out) {
  const int64_t element = ElementBytes(x.dtype);
  const char* from = static_cast<const char*>(x.data);
  char* to = static_cast<char*>(out.data);
  AsCpu(device).ParallelFor(out.rows, out.rows * out.cols / 16, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      std::memcpy(to + r * out.stride * element, from + rows[r] * x.stride * element,
                  static_cast<size_t>(out.cols * element));
    }
  });
}

void PoolRows(Device& device, const TensorView& x, const PooledRows* pools, int64_t n,
              const TensorView& out) {
  CpuDevice& cpu = AsCpu(device);
  constexpr int64_t kPiece = 256;  // columns, of which the sum stays in the fastest cache
  const int64_t num_pieces = (x.cols + kPiece - 1) / kPiece, element = ElementBytes(x.dtype);
  int64_t num_rows = 0;
  for (int64_t i = 0; i < n; ++i) num_rows += pools[i].num_rows;
  const auto pool_piece = [&](const PooledRows& pool, int64_t first_col) {
    const int64_t cols = std::min(kPiece, x.cols - first_col);
    float* const sum = out.row<float>(pool.out_row) + first_col;
    float row[kPiece];
    if (!pool.continues) std::fill_n(sum, cols, 0.0f);
    for (int64_t r = pool.first_row; r < int64_t{pool.first_row} + pool.num_rows; ++r) {
      const char* const from = static_cast<const char*>(x.data) + (r * x.stride + first_col) * element;
      cpu.kernels().to_float(from, x.dtype, cols, row);
      cpu.kernels().add(sum, row, cols);
    }
    if (pool.divisor == 1) return;
    for (int64_t c = 0; c < cols; ++c) sum[c] /= pool.divisor;
  };
  cpu.ParallelFor(n * num_pieces, num_rows * x.cols / 4, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) pool_piece(pools[i / num_pieces], i % num_pieces * kPiece);
  });
}

}  // namespace somnus::cpu
