#pragma once
// Checks that there is a GPU to run on, before any work starts there.

#include "absl/status/status.h"

namespace somnus {

// Unavailable: this build has no CUDA, or the machine no driver or no GPU; FailedPrecondition: the driver
// cannot serve this build, with the version found and the version needed; InvalidArgument: there is no GPU of
// this index.
absl::Status CheckCudaDevice(int index);

}  // namespace somnus
