#include "worker/choose_device.h"

#include <memory>

#include "absl/strings/str_cat.h"
#include "allocator/host_memory.h"
#include "base/status_macros.h"

namespace somnus {
namespace {

// The runtime is checked first: it may need a newer driver than the memory calls do.
absl::StatusOr<int64_t> GpuBytes(const WorkerParts& parts, int index) {
  const WorkerOptions options = {.device = DeviceKind::kCuda, .device_index = index};
  RETURN_IF_ERROR(parts.check_device(options));
  ASSIGN_OR_RETURN(const std::unique_ptr<VmmDriver> memory, parts.open_memory(options, /*num_threads=*/1));
  return memory->TotalBytes();
}

}  // namespace

absl::StatusOr<ChosenDevice> ChooseDevice(const WorkerParts& parts, const std::string& wanted, int index) {
  ChosenDevice cpu = {DeviceKind::kCpu, AvailableHostMemory(), absl::OkStatus()};
  if (wanted == "cpu") return cpu;
  const absl::StatusOr<int64_t> bytes = GpuBytes(parts, index);
  if (bytes.ok()) return ChosenDevice{DeviceKind::kCuda, *bytes, absl::OkStatus()};
  if (wanted == "auto" && (index == 0 || !GpuBytes(parts, 0).ok())) {
    cpu.no_gpu = bytes.status();
    return cpu;
  }
  return absl::FailedPreconditionError(absl::StrCat("--device=", wanted, ", GPU ", index, ": ",
                                                    bytes.status().message(), "; --device=cpu needs none"));
}

}  // namespace somnus
