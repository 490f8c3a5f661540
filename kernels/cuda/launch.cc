#include "kernels/cuda/launch.h"

// Not in the emulator, which has its own launch.
namespace somnus::SOMNUS_CUDA_NAMESPACE {

cudaError_t LaunchOnStream(const LaunchConfig& config, cudaStream_t stream, const void* kernel, void** args) {
  cudaLaunchAttribute overlap = {};
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t launch = {};
  launch.gridDim = config.grid;
  launch.blockDim = config.block;
  launch.dynamicSmemBytes = static_cast<size_t>(config.shared_bytes);
  launch.stream = stream;
  launch.attrs = &overlap;
  launch.numAttrs = config.overlaps_previous ? 1 : 0;
  return cudaLaunchKernelExC(&launch, kernel, args);
}

}  // namespace somnus::SOMNUS_CUDA_NAMESPACE
