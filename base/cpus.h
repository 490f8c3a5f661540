#pragma once
// Which CPUs this process may use, and how many at a time. Thread safe.

#include <vector>

#include "absl/types/span.h"

namespace somnus {

// The CPUs of the process's affinity mask when it started, ascending; CPU 0 alone where the mask cannot be
// read. The mask is read at the start because a thread that is pinned later sees only its own CPU. After
// RestrictToCpus: the CPUs given there.
std::vector<int> AllowedCpus();
// As many threads as can compute at once: AllowedCpus().size(), or the quota of the process's control group,
// rounded down, where the quota is less; at least 1.
int NumAllowedCpus();
// Whether a quota lets the process use fewer CPUs than it may run on. Then no CPU is the process's own: other
// processes with similar quotas run on the same CPUs.
bool HasCpuQuota();

// The number that NumAllowedCpus() returns of so many CPUs and such a quota (CpuQuota in base/cgroup.h).
int CpusWithin(double quota, int num_cpus);

// From now on AllowedCpus() are `cpus`, in this order, and all threads of the process run there: existing
// threads, and the threads that these start. Returns false where the kernel refuses a thread, which goes on
// where it was.
bool RestrictToCpus(absl::Span<const int> cpus);

// Restricts the calling thread to `cpus`. Returns false where the kernel refuses; the thread then runs where
// it ran before.
bool PinThisThread(absl::Span<const int> cpus);
// Lets the calling thread run on all of AllowedCpus() again, as far as the kernel allows. A thread inherits
// the pin of its parent thread: helpers of a thread that is pinned to one CPU would share that CPU.
void UnpinThisThread();

}  // namespace somnus
