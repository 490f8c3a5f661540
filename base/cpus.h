#pragma once
// Which CPUs this process may use. Thread safe.

#include <vector>

#include "absl/types/span.h"

namespace somnus {

// The process's affinity mask when it started, ascending; CPU 0 alone where it cannot be read. Taken at start
// because a thread that is pinned later sees only its own CPU.
const std::vector<int>& AllowedCpus();
// At least 1.
int NumAllowedCpus();

// Restricts the calling thread to `cpus`. False where the kernel refuses; the thread then runs where it ran
// before.
bool PinThisThread(absl::Span<const int> cpus);

}  // namespace somnus
