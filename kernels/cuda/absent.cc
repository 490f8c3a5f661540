// Stands in for the CUDA backend in builds without CUDA (without --config=cuda).
#include "absl/status/status.h"
#include "kernels/cuda/check.h"
#include "kernels/device.h"

namespace somnus {

absl::Status CheckCudaDevice(int) {
  return absl::UnavailableError(
      "no CUDA device: this program was built without CUDA (--config=cuda builds with it)");
}

absl::StatusOr<std::unique_ptr<Device>> Device::CreateCuda(int index) { return CheckCudaDevice(index); }

}  // namespace somnus
