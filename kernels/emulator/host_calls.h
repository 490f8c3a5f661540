#pragma once
// Counts calls to the runtime, for tests: calls of a host thread, to test that the thread never waits, and
// calls for graphs, to test that no graph is captured twice.

#include <cstdint>

namespace somnus::cuda_emulated::emulator {

struct HostCalls {
  // Calls that wait for the device, or may: synchronize, blocking copies, copies of pageable memory,
  // allocation and freeing.
  int64_t waits = 0;
  int64_t copies_to_device = 0;
  int64_t copies_to_host = 0;
};

// Since the calling thread started.
HostCalls& CallsOfThisThread();

struct GraphCalls {
  int64_t instantiations = 0;  // of captures
  int64_t launches = 0;
};

// The calls of all threads since the process started. Thread safe.
GraphCalls CallsForGraphs();

}  // namespace somnus::cuda_emulated::emulator
