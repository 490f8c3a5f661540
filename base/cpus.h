#pragma once
// Which CPUs this process may use. Thread safe.

#include <vector>

#include "absl/types/span.h"

namespace somnus {

// The CPUs of the process's affinity mask when it started, ascending; CPU 0 alone where the mask cannot be
// read. It is read at the start because a thread that is pinned later sees only its own CPU.
const std::vector<int>& AllowedCpus();
// AllowedCpus().size(): at least 1.
int NumAllowedCpus();

// Restricts the calling thread to `cpus`. Returns false where the kernel refuses; the thread then runs where
// it ran before.
bool PinThisThread(absl::Span<const int> cpus);

}  // namespace somnus
