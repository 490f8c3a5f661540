#include "kernels/cuda/launch.h"
#include "kernels/cuda/probe.h"

namespace somnus::SOMNUS_CUDA_NAMESPACE {
namespace {

__global__ void ProbeKernel() {}

}  // namespace

void RunProbe(CudaDevice& device) { Launch(device, {.grid = 1, .block = 1}, ProbeKernel); }

}  // namespace somnus::SOMNUS_CUDA_NAMESPACE
