#pragma once
// Counts a host thread's calls to the runtime, for tests that a thread never waits.

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

}  // namespace somnus::cuda_emulated::emulator
