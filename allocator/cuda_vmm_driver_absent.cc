// Stands in for cuda_vmm_driver.cc in builds without --config=cuda.

#include "allocator/cuda_vmm_driver.h"

namespace somnus {

absl::StatusOr<std::unique_ptr<VmmDriver>> MakeCudaVmmDriver(int, const CudaVmmDriverOptions&) {
  return absl::UnimplementedError("this build has no CUDA; build with --config=cuda");
}

absl::StatusOr<std::string> CudaPciBusId(int) {
  return absl::UnimplementedError("this build has no CUDA; build with --config=cuda");
}

}  // namespace somnus
