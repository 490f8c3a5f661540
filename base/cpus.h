#pragma once
// Which CPUs this process may use, and how many of them at a time. Thread safe.

#include <vector>

#include "absl/types/span.h"

namespace somnus {

// The CPUs of the process's affinity mask when it started, ascending; CPU 0 alone where the mask cannot be
// read. It is read at the start because a thread that is pinned later sees only its own CPU. After
// RestrictToCpus: those.
std::vector<int> AllowedCpus();
// As many threads as can compute at once: AllowedCpus().size(), or what the quota of the process's control
// group pays for where that is less, rounded down; at least 1.
int NumAllowedCpus();
// Whether a quota lets the process use fewer CPUs than it may run on. Then no CPU is its own: others, whose
// quotas are like its own, run on the same ones.
bool HasCpuQuota();

// The number that NumAllowedCpus() returns of so many CPUs and such a quota (CpuQuota in base/cgroup.h).
int CpusWithin(double quota, int num_cpus);

// From now on AllowedCpus() are `cpus`, in this order, and all threads of the process run there: those that
// there are, and those that they start. Returns false where the kernel refuses a thread, which goes on where
// it was.
bool RestrictToCpus(absl::Span<const int> cpus);

// Restricts the calling thread to `cpus`. Returns false where the kernel refuses; the thread then runs where
// it ran before.
bool PinThisThread(absl::Span<const int> cpus);
// Lets the calling thread run on all of AllowedCpus() again, as far as the kernel allows it. A thread
// inherits the pin of the one that starts it: helpers of a thread that is pinned to one CPU would share that
// CPU.
void UnpinThisThread();

}  // namespace somnus
