#pragma once
// How much memory a rank has for its KV cache: what is left once everything else that serving needs is
// resident.

#include <cstdint>

#include "absl/status/statusor.h"
#include "allocator/vmm_driver.h"
#include "worker/comm/communicator.h"
#include "worker/load_options.h"
#include "worker/runner/model_runner.h"

namespace somnus {

struct KvMemory {
  int64_t available_bytes = 0;  // for the KV cache
  int64_t graph_bytes = 0;      // of the device, held by the decode graphs; not in available_bytes
  double graph_seconds = 0;     // that capturing them took
};

// Runs the largest steps and captures the decode graphs, then measures. A GPU belongs to one rank, which may
// use memory_utilization of all its memory. The ranks of a host share memory_utilization of what the host has
// left evenly, so that together they never take more than there is. When nothing is left the result is 0, and
// a warning says what took it. Collective: all ranks call it, each on its runner thread.
absl::StatusOr<KvMemory> MeasureKvMemory(const LoadOptions& options, ModelRunner* runner,
                                         Communicator* communicator, VmmDriver* driver);

}  // namespace somnus
