#pragma once
// Counts calls to the runtime, for tests: those of a host thread, that it never waits, and those for graphs,
// that none is captured twice.

#include <cstdint>

namespace somnus::cuda_emulated::emulator {

struct HostCalls {
  // Calls that wait for the device, or may: synchronize, blocking copies and those of pageable memory,
  // allocation and freeing.
  int64_t waits = 0;
  int64_t copies_to_device = 0;
  int64_t copies_to_host = 0;
};

// Since the calling thread started.
HostCalls& CallsOfThisThread();

struct GraphCalls {
  int64_t instantiations = 0;  // of what was captured
  int64_t launches = 0;
};

// Of all threads, since the process started. Thread safe.
GraphCalls CallsForGraphs();

}  // namespace somnus::cuda_emulated::emulator
