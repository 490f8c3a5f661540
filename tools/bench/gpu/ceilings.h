#pragma once
// What the GPU's memory, its bus and its tensor cores do at best, by the vendor's own copies and matrix
// products.

#include "absl/status/statusor.h"
#include "kernels/device.h"

namespace somnus {

struct GpuCeilings {
  double copy_gbps = 0;            // device to device; bytes read plus bytes written
  double host_to_device_gbps = 0;  // from pinned memory
  double device_to_host_gbps = 0;
};

// Needs 2 GiB of the device's memory and 1 GiB of pinned memory.
absl::StatusOr<GpuCeilings> MeasureCeilings(int device_index);

}  // namespace somnus
