#include "kernels/cuda/launch.h"

// Not in the emulator, which has a launch of its own.
namespace somnus::SOMNUS_CUDA_NAMESPACE {

cudaError_t LaunchOnStream(const LaunchConfig& config, cudaStream_t stream, const void* kernel, void** args) {
  cudaLaunchAttribute attributes[2];
  unsigned count = 0;
  if (config.cooperative) {
    attributes[count].id = cudaLaunchAttributeCooperative;
    attributes[count++].val.cooperative = 1;
  }
  if (config.overlaps_previous) {
    attributes[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[count++].val.programmaticStreamSerializationAllowed = 1;
  }
  cudaLaunchConfig_t launch = {};
  launch.gridDim = config.grid;
  launch.blockDim = config.block;
  launch.dynamicSmemBytes = static_cast<size_t>(config.shared_bytes);
  launch.stream = stream;
  launch.attrs = attributes;
  launch.numAttrs = count;
  return cudaLaunchKernelExC(&launch, kernel, args);
}

}  // namespace somnus::SOMNUS_CUDA_NAMESPACE
