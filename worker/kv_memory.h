#pragma once
// How much memory a rank has for its KV cache: what is left once everything else that serving needs is there.

#include <cstdint>

#include "absl/status/statusor.h"
#include "allocator/vmm_driver.h"
#include "kernels/device.h"
#include "worker/comm/communicator.h"
#include "worker/runner/model_runner.h"

namespace somnus {

struct KvMemory {
  int64_t available_bytes = 0;  // for the KV cache
  int64_t graph_bytes = 0;      // of the device, held by the decode graphs; not in available_bytes
  double graph_seconds = 0;     // that capturing them took
};

// Runs the largest steps and captures the decode graphs, then measures. A GPU is one rank's, who may have
// `utilization` (0, 1] of all its memory; the ranks of a host share that much of what the host has left
// evenly. Nothing left is an answer of 0, and a warning that says what took it. Collective: all ranks call
// it, on the runner's thread.
absl::StatusOr<KvMemory> MeasureKvMemory(DeviceKind device, double utilization, ModelRunner* runner,
                                         Communicator* communicator, VmmDriver* driver);

}  // namespace somnus
