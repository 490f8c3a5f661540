#include "base/cpus.h"

#include <sched.h>

namespace somnus {
namespace {

std::vector<int> AffinityMask() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return {0};
  std::vector<int> cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &set)) cpus.push_back(cpu);
  }
  return cpus;
}

const std::vector<int>& Snapshot() {
  static const std::vector<int>* const cpus = new std::vector<int>(AffinityMask());
  return *cpus;
}

// This reads the mask before main, and so before any thread is pinned.
[[maybe_unused]] const std::vector<int>& at_start = Snapshot();

}  // namespace

const std::vector<int>& AllowedCpus() { return Snapshot(); }

int NumAllowedCpus() { return static_cast<int>(Snapshot().size()); }

bool PinThisThread(absl::Span<const int> cpus) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int cpu : cpus) CPU_SET(cpu, &set);
  return sched_setaffinity(0, sizeof(set), &set) == 0;
}

}  // namespace somnus
