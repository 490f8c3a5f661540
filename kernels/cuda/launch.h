#pragma once
// How kernels are started, and how they see their shared memory: the same text under nvcc and in the
// emulator.

#include <cstdint>

#include "kernels/cuda/api.h"
#include "kernels/cuda/cuda_device.h"

namespace somnus::SOMNUS_CUDA_NAMESPACE {

struct LaunchConfig {
  dim3 grid;
  dim3 block;
  int64_t shared_bytes = 0;  // dynamic; more than 48 KiB is opted in on the first launch
};

// Queues kernel<<<grid, block, shared_bytes, device.stream()>>>(args...). Errors go to device.Record.
template <typename... Params, typename... Args>
void Launch(CudaDevice& device, const LaunchConfig& config, void (*kernel)(Params...), Args&&... args);

// All shared memory of a kernel is one struct in dynamic shared memory (no static __shared__): the launch
// gives its size, and the emulator can poison it and watch its bounds. Followed by `extra` bytes where the
// launch gave more.
template <typename T>
__device__ T& SharedStorage();

}  // namespace somnus::SOMNUS_CUDA_NAMESPACE
