#pragma once
// What the GPU's memory and its bus do at best, measured with the CUDA runtime's own copies.

#include "absl/status/statusor.h"
#include "kernels/device.h"

namespace somnus {

struct GpuCeilings {
  double copy_gbps = 0;            // device to device; bytes read plus bytes written
  double host_to_device_gbps = 0;  // from pinned memory
  double device_to_host_gbps = 0;
};

// Takes 2 GiB of the device's memory and 1 GiB of pinned memory.
absl::StatusOr<GpuCeilings> MeasureCeilings(int device_index);

}  // namespace somnus
