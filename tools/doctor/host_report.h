#pragma once
// What Somnus makes of this host: the CPUs that compute, the instruction set, the nodes of its workers, and
// how fast it can be at best.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/numa.h"
#include "tools/probe/machine_peak.h"
#include "tools/probe/probe_thread.h"
#include "worker/placement.h"

namespace somnus {

struct HostReport {
  std::string cpu_name;               // as the kernel has it; may be empty
  std::vector<int> allowed;           // CPUs that this process may run on
  std::vector<int> siblings;          // of these, all but one of each core: nothing computes there
  std::vector<int> slow;              // cores that are slow, and do not compute for that
  double quota = 0;                   // CPUs that its control group pays for; 0: no quota
  std::string isa;                    // the instruction set that is used
  bool isa_is_forced = false;         // by SOMNUS_CPU_ISA
  std::vector<std::string> isas;      // all that this CPU has, the best one last
  int64_t available_bytes = 0;        // memory that processes can still take, within their control group
  std::string huge_pages;             // "always", "madvise" or "never"; empty where the kernel tells nothing
  std::map<int, double> speeds;       // as in CpuTopology
  std::vector<NumaNode> nodes;        // none where the kernel tells none
  std::vector<Placement> placements;  // by worker
};

// The slow cores on which no worker computes, by the host's CPUs, speeds and placements.
std::vector<int> SlowCpus(const HostReport& host);

// For so many local workers on CPUs. FailedPrecondition or InvalidArgument: SOMNUS_CPU_ISA names what this
// CPU lacks, or nothing.
absl::StatusOr<HostReport> ReportHost(int num_workers);

// What one step's threads can do at best, measured now; takes about half a second on an idle host.
struct HostCeilings {
  int num_threads = 0;
  double read_gbps = 0;  // sequential reads, 1e9 bytes a second
  MachinePeaks peaks;    // of the instruction set that is used
};
// With the threads of ProbeThreads.
HostCeilings MeasureCeilings(const HostReport& host);

// The threads of all workers of `host`, each on the CPU that it is pinned to, and with memory of the nodes
// that its worker takes it from. Those without pins are on the first CPUs of their worker that no other
// thread has, which are of a core each as far as there are enough; those for which no CPU is left are not
// there.
std::vector<ProbeThread> ProbeThreads(const HostReport& host);

}  // namespace somnus
