#include "kernels/cuda/driver_version.h"

#include <fstream>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace somnus {
namespace {

std::string CudaVersion(int version) { return absl::StrCat(version / 1000, ".", version % 1000 / 10); }

// The oldest release that serves a major version of CUDA (on Linux, by NVIDIA's table of compatibility).
std::string NeededRelease(int runtime_cuda) {
  switch (runtime_cuda / 1000) {
    case 11:
      return "450.80";
    case 12:
      return "525.60";
    case 13:
      return "580.65";
    default:
      return "";
  }
}

std::string Need(int runtime_cuda) {
  const std::string release = NeededRelease(runtime_cuda);
  return absl::StrCat("this program was built with CUDA ", CudaVersion(runtime_cuda), ", which needs driver ",
                      release.empty() ? "of the same major version" : release, " or newer");
}

}  // namespace

absl::Status CheckDriverVersion(int driver_cuda, int runtime_cuda, absl::string_view driver_release) {
  if (driver_cuda / 1000 >= runtime_cuda / 1000) return absl::OkStatus();
  if (driver_cuda > 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("no CUDA device: the NVIDIA driver", driver_release.empty() ? "" : " ", driver_release,
                     " knows CUDA up to ", CudaVersion(driver_cuda), "; ", Need(runtime_cuda)));
  }
  if (driver_release.empty()) {
    return absl::UnavailableError(
        absl::StrCat("no CUDA device: there is no NVIDIA driver; ", Need(runtime_cuda)));
  }
  // A container that was started without the driver's libraries.
  return absl::FailedPreconditionError(
      absl::StrCat("no CUDA device: the NVIDIA driver ", driver_release,
                   " is loaded, but its library libcuda.so.1 cannot be opened; ", Need(runtime_cuda)));
}

std::string LoadedDriverRelease(const std::string& root) {
  // "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.15  Fri Dec ...": the first word of digits and
  // dots.
  std::ifstream file(root + "/proc/driver/nvidia/version");
  std::string line;
  if (!std::getline(file, line)) return "";
  for (const std::string& word : std::vector<std::string>(absl::StrSplit(line, ' ', absl::SkipEmpty()))) {
    const bool number = word.find_first_not_of("0123456789.") == std::string::npos;
    if (number && word.find('.') != std::string::npos) return word;
  }
  return "";
}

}  // namespace somnus
