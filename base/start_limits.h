#pragma once
// The limits of the system that a process needs at its start. A process that is short of descriptors, threads
// or addresses would hang or abort later, in a library that does not say why.

#include <cstdint>

#include "absl/status/status.h"

namespace somnus {

struct StartNeeds {
  int64_t descriptors = 0;    // the least limit (ulimit -n)
  int threads = 0;            // at once
  int worker_threads = 0;     // at once, in processes that this process starts under the same limit
  int64_t address_bytes = 0;  // the least limit (ulimit -v)
};

// FailedPrecondition names the limit that is too low, and the least value that will do. The descriptors'
// limit is raised first (RaiseDescriptorLimit). For a trial, starts so many threads at once and ends the
// threads again, since several limits of the system bound threads. Also lets a write beyond the limit of file
// sizes fail (ulimit -f), instead of ending the process.
absl::Status CheckStartLimits(const StartNeeds& needs);

}  // namespace somnus
