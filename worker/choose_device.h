#pragma once
// Which device a worker runs on: chosen from --device and from what the machine has.

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/worker.h"

namespace somnus {

struct ChosenDevice {
  DeviceKind kind = DeviceKind::kCpu;
  int64_t memory_bytes = 0;  // of a GPU all that it has, of the CPU what its host has available
  // Under "auto", why the device is not the GPU. FailedPrecondition: there is a driver, but this program
  // cannot use it, which deserves a warning. Ok: it is the GPU, or "cpu" was asked for.
  absl::Status no_gpu;
};

// `wanted`: "auto", "cpu" or "cuda"; `index`: which GPU. FailedPrecondition says what is missing for "cuda",
// or for "auto" on a host whose first GPU can be used, but not this one: ranks of a group must not differ.
absl::StatusOr<ChosenDevice> ChooseDevice(const WorkerParts& parts, const std::string& wanted, int index);

}  // namespace somnus
