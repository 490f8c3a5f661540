#pragma once
// The parts of the worker binary, with the tests' GPU as the device.

#include <memory>

#include "tests/cuda/gpu_ranks.h"
#include "worker/worker_parts.h"

namespace somnus::cuda_test {

inline WorkerParts GpuParts() {
  WorkerParts parts = RealWorkerParts();
  parts.open_device = [](const WorkerOptions&,
                         const CpuDeviceOptions&) -> absl::StatusOr<std::unique_ptr<Device>> {
    std::unique_ptr<Device> device = MakeCudaDevice();
    if (device == nullptr) return absl::UnavailableError("no GPU");
    return device;
  };
  parts.open_memory = [](const WorkerOptions& options, int) {
    return MakeGpuMemory(options.device_chunk_bytes);
  };
  parts.join_device_link = nullptr;  // ranks share the GPU
  return parts;
}

}  // namespace somnus::cuda_test
