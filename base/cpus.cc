#include "base/cpus.h"

#include <errno.h>
#include <sched.h>
#include <sys/types.h>

#include <algorithm>
#include <filesystem>
#include <mutex>
#include <string>
#include <system_error>

#include "absl/strings/numbers.h"
#include "base/cgroup.h"

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

struct Cpus {
  std::mutex mu;
  std::vector<int> allowed = AffinityMask();
  const double quota = CpuQuota();
};

Cpus& Mine() {
  static Cpus* const cpus = new Cpus;
  return *cpus;
}

// This reads the mask before main, and so before any thread is pinned.
[[maybe_unused]] const Cpus& at_start = Mine();

// Sets the affinity of thread `tid`, which may have ended; 0: of the caller.
bool SetAffinity(pid_t tid, absl::Span<const int> cpus) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int cpu : cpus) CPU_SET(cpu, &set);
  return sched_setaffinity(tid, sizeof(set), &set) == 0 || errno == ESRCH;
}

}  // namespace

std::vector<int> AllowedCpus() {
  const std::lock_guard<std::mutex> lock(Mine().mu);
  return Mine().allowed;
}

int NumAllowedCpus() { return CpusWithin(Mine().quota, static_cast<int>(AllowedCpus().size())); }

bool HasCpuQuota() { return NumAllowedCpus() < static_cast<int>(AllowedCpus().size()); }

int CpusWithin(double quota, int num_cpus) {
  return quota > 0 && quota < num_cpus ? std::max(1, static_cast<int>(quota)) : num_cpus;
}

bool RestrictToCpus(absl::Span<const int> cpus) {
  {
    const std::lock_guard<std::mutex> lock(Mine().mu);
    Mine().allowed.assign(cpus.begin(), cpus.end());
  }
  bool all_moved = SetAffinity(0, cpus);
  std::error_code error;
  std::filesystem::directory_iterator tasks("/proc/self/task", error), end;
  for (; !error && tasks != end; tasks.increment(error)) {
    int tid = 0;
    if (absl::SimpleAtoi(tasks->path().filename().string(), &tid)) all_moved &= SetAffinity(tid, cpus);
  }
  return all_moved && !error;
}

bool PinThisThread(absl::Span<const int> cpus) { return SetAffinity(0, cpus); }

void UnpinThisThread() { SetAffinity(0, AllowedCpus()); }

}  // namespace somnus
