#pragma once
// Measures the ceilings with the CUDA runtime's own copies.

#include "absl/status/statusor.h"
#include "tools/bench/gpu/ceilings.h"

namespace somnus {

// Takes 2 GiB of the device's memory and 1 GiB of pinned memory.
absl::StatusOr<GpuCeilings> MeasureCeilings(int device_index);

}  // namespace somnus
