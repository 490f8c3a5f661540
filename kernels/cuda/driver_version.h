#pragma once
// Checks whether the installed NVIDIA driver can serve the CUDA runtime that this program was built with.
// Plain numbers: no CUDA here.

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace somnus {

// Versions of CUDA as CUDA counts them: 13000 for 13.0. A runtime works with every driver of its own major
// version or a later one. `driver_cuda`: the newest CUDA that the driver knows; 0: there is no driver.
// `driver_release`: the driver's own number, such as "570.86.15"; empty when not known. Unavailable without a
// driver, FailedPrecondition with a driver that is too old; both name the needed release.
absl::Status CheckDriverVersion(int driver_cuda, int runtime_cuda, absl::string_view driver_release);

// Returns the release of the loaded kernel module; empty where there is none. `root` is put before /proc, for
// tests.
std::string LoadedDriverRelease(const std::string& root = "");

}  // namespace somnus
