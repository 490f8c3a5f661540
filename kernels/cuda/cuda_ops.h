#pragma once
// The CUDA backend's ops: the ops of ops.h in this backend's namespace, and the scratch for each op.

#include <cstdint>

#include "kernels/cuda/cuda_device.h"
#include "kernels/op_table.h"

namespace somnus::SOMNUS_CUDA_NAMESPACE {

SOMNUS_OPS(SOMNUS_DECLARE_OP)

// Bytes of scratch; OpsWorkspaceBytes is the largest.
int64_t LinearWorkspaceBytes(const CudaDevice& device, const OpsLimits& limits);
int64_t AttentionWorkspaceBytes(const CudaDevice& device, const OpsLimits& limits);
int64_t SamplingWorkspaceBytes(const CudaDevice& device, const OpsLimits& limits);

}  // namespace somnus::SOMNUS_CUDA_NAMESPACE
