#pragma once
// The smallest kernel: tells at start whether this program holds code for the chip.

#include "kernels/cuda/cuda_device.h"

namespace somnus::SOMNUS_CUDA_NAMESPACE {

// Queues a kernel that does nothing. An error, at the latest from Synchronize, says that no kernel would run.
void RunProbe(CudaDevice& device);

}  // namespace somnus::SOMNUS_CUDA_NAMESPACE
