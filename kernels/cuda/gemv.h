#pragma once
// Our kernels for Linear: for few rows gemv.cu, for many linear_tiles.cu.

#include <cstdint>

#include "kernels/cuda/cuda_device.h"
#include "kernels/ops.h"

namespace somnus::SOMNUS_CUDA_NAMESPACE {

// The arguments of both kinds of kernels.
struct LinearArgs {
  const void* x;      // [rows, k] act, row stride x_stride elements
  const void* w;      // [n, k] act
  const float* bias;  // [n] or nullptr
  void* y;            // [rows, n] act or f32, row stride y_stride
  int64_t x_stride;
  int64_t y_stride;
  int32_t rows;
  int32_t n;
  int32_t k;
  int32_t section_lines;  // LinearSectionLines(k)
};

LinearArgs MakeLinearArgs(const TensorView& x, const LinearWeight& w, const float* bias, const TensorView& y);

// y[rows, n] = x[rows, k] * w[n, k]^T + bias (f32 or nullptr), for products that RouteLinear sends to kGemv.
// A row of y does not depend, bit for bit, on other rows nor on their number.
void RunGemv(CudaDevice& device, const TensorView& x, const LinearWeight& w, const float* bias,
             const TensorView& y);

// As RunGemv, for products that RouteLinear sends to kTiles: bf16 and f16, any number of rows. A row of y has
// the same bits as from RunGemv.
void RunLinearTiles(CudaDevice& device, const TensorView& x, const LinearWeight& w, const float* bias,
                    const TensorView& y);

}  // namespace somnus::SOMNUS_CUDA_NAMESPACE
