#pragma once
// Where a worker runs: what --device asks for, and what the machine has.

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/worker.h"

namespace somnus {

struct ChosenDevice {
  DeviceKind kind = DeviceKind::kCpu;
  int64_t memory_bytes = 0;
  // Under "auto", why it is not the GPU. FailedPrecondition: there is a driver, but not one that serves this
  // program; somebody should know. Ok: nothing was asked for in vain.
  absl::Status no_gpu;
};

// `wanted`: "auto", "cpu" or "cuda"; `index`: which GPU. FailedPrecondition says what is missing for "cuda",
// or for "auto" on a host whose first GPU can be used, but not this one: ranks of a group must not differ.
absl::StatusOr<ChosenDevice> ChooseDevice(const WorkerParts& parts, const std::string& wanted, int index);

}  // namespace somnus
