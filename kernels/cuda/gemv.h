#pragma once
// Our kernels for Linear: for few rows gemv.cu, for many linear_tiles.cu.

#include "kernels/cuda/cuda_device.h"
#include "kernels/ops.h"

namespace somnus::SOMNUS_CUDA_NAMESPACE {

// y[rows, n] = x[rows, k] * w[n, k]^T + bias (f32 or nullptr), for what RouteLinear sends to kGemv. A row of
// y does not depend, bit for bit, on the other rows nor on how many there are.
void RunGemv(CudaDevice& device, const TensorView& x, const LinearWeight& w, const float* bias,
             const TensorView& y);

// The same for what goes to kTiles: bf16 and f16, any number of rows. A row is, bit for bit, what RunGemv
// makes of it.
void RunLinearTiles(CudaDevice& device, const TensorView& x, const LinearWeight& w, const float* bias,
                    const TensorView& y);

}  // namespace somnus::SOMNUS_CUDA_NAMESPACE
