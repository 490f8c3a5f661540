// Device::CreateCuda of a build with CUDA.
#include <utility>

#include "kernels/cuda/check.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/device.h"

namespace somnus {

absl::Status CheckCudaDevice(int index) { return cuda_device::CheckDevice(index); }

absl::StatusOr<std::unique_ptr<Device>> Device::CreateCuda(int index) {
  absl::StatusOr<std::unique_ptr<cuda_device::CudaDevice>> device = cuda_device::CudaDevice::Create(index);
  if (!device.ok()) return device.status();
  return *std::move(device);
}

}  // namespace somnus
