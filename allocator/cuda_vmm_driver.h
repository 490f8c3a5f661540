#pragma once
// VmmDriver over a GPU's memory. The CUDA driver library is looked for at run time, so that one binary starts
// with and without a GPU.

#include <memory>

#include "absl/status/statusor.h"
#include "allocator/vmm_driver.h"

namespace somnus {

// Works in the device's primary context, which the CUDA runtime shares. Thread safe. Copies go over a stream
// of its own. Unavailable: no driver library, no such device, or a device without virtual memory management.
// Unimplemented: this build has no CUDA.
absl::StatusOr<std::unique_ptr<VmmDriver>> MakeCudaVmmDriver(int device_index);

}  // namespace somnus
