// CudaDevice::ops of the real backend; emulated_op_table.cc has the emulator's.

#include "kernels/cuda/cuda_ops.h"

namespace somnus::SOMNUS_CUDA_NAMESPACE {

const OpTable& CudaDevice::ops() const {
  static constexpr OpTable kOps = SOMNUS_OP_TABLE;
  return kOps;
}

}  // namespace somnus::SOMNUS_CUDA_NAMESPACE
