#pragma once
// Linear for few rows: see gemv.cu.

#include "kernels/cuda/cuda_device.h"
#include "kernels/ops.h"

namespace somnus::SOMNUS_CUDA_NAMESPACE {

// y[rows, n] = x[rows, k] * w[n, k]^T + bias (f32 or nullptr), for what RouteLinear sends to kGemv. A row of
// y does not depend, bit for bit, on the other rows nor on how many there are.
void RunGemv(CudaDevice& device, const TensorView& x, const LinearWeight& w, const float* bias,
             const TensorView& y);

}  // namespace somnus::SOMNUS_CUDA_NAMESPACE
