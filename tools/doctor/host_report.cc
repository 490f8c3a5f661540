#include "tools/doctor/host_report.h"

#include <stdlib.h>

#include <cstddef>
#include <fstream>
#include <memory>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include "allocator/host_memory.h"
#include "base/cgroup.h"
#include "base/cpu_topology.h"
#include "base/cpus.h"
#include "base/first_line.h"
#include "base/status_macros.h"
#include "kernels/device.h"
#include "tools/probe/machine_probe.h"

namespace somnus {
namespace {

std::string CpuName() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (!absl::StartsWith(line, "model name")) continue;
    return std::string(absl::StripAsciiWhitespace(line.substr(line.find(':') + 1)));
  }
  return "";
}

// "always [madvise] never": the word in brackets.
std::string HugePages() {
  const std::string line = FirstLine("/sys/kernel/mm/transparent_hugepage/enabled");
  const size_t begin = line.find('['), end = line.find(']');
  return begin < end && end != std::string::npos ? line.substr(begin + 1, end - begin - 1) : "";
}

std::vector<std::string> IsasOfThisCpu() {
  std::vector<std::string> names;
  for (const CpuIsa isa : kCpuIsas) {
    if (Device::CreateCpu({.num_threads = 1, .isa = isa}).ok()) names.emplace_back(CpuIsaName(isa));
  }
  return names;
}

}  // namespace

std::vector<int> SlowCpus(const HostReport& host) {
  std::set<int> idle;
  for (const int cpu : host.allowed) {
    const auto speed = host.speeds.find(cpu);
    if (speed != host.speeds.end() && speed->second < 1) idle.insert(cpu);
  }
  for (const int cpu : host.siblings) idle.erase(cpu);
  for (const Placement& placement : host.placements) {
    for (const int cpu : PinnedCpus(placement, host.allowed)) idle.erase(cpu);
  }
  return {idle.begin(), idle.end()};
}

absl::StatusOr<HostReport> ReportHost(int num_workers) {
  HostReport report;
  ASSIGN_OR_RETURN(report.isa, ChosenCpuIsaName());
  const char* const forced = getenv("SOMNUS_CPU_ISA");
  report.isa_is_forced = forced != nullptr && *forced != '\0';
  report.isas = IsasOfThisCpu();
  report.cpu_name = CpuName();
  report.allowed = AllowedCpus();
  const CpuTopology topology = ReadCpuTopology();
  report.siblings = SiblingCpus(topology, report.allowed);
  report.speeds = topology.speeds;
  report.quota = CpuQuota();
  report.available_bytes = AvailableHostMemory();
  report.huge_pages = HugePages();
  report.nodes = ReadNumaNodes();
  const HostCpus host = {report.nodes, report.allowed, NumAllowedCpus(), report.siblings, report.speeds};
  for (int i = 0; i < num_workers; ++i) {
    const PlacementRequest request = {
        .ranks_on_host = num_workers, .index_on_host = i, .pins = !HasCpuQuota()};
    ASSIGN_OR_RETURN(report.placements.emplace_back(), ChoosePlacement(request, host));
  }
  report.slow = SlowCpus(report);
  return report;
}

std::vector<ProbeThread> ProbeThreads(const HostReport& host) {
  std::vector<ProbeThread> threads;
  std::set<int> taken;
  for (const Placement& placement : host.placements) {
    std::vector<int> cpus = PinnedCpus(placement, host.allowed);
    if (cpus.empty()) cpus = placement.cpus.empty() ? host.allowed : placement.cpus;
    int missing = placement.num_threads;
    for (size_t i = 0; i < cpus.size() && missing > 0; ++i) {
      if (!taken.insert(cpus[i]).second) continue;
      const double speed = i < placement.thread_speeds.size() ? placement.thread_speeds[i] : 1;
      threads.push_back({cpus[i], speed, placement.memory_nodes});
      --missing;
    }
  }
  return threads;
}

HostCeilings MeasureCeilings(const HostReport& host) {
  const std::vector<ProbeThread> threads = ProbeThreads(host);
  return {.num_threads = static_cast<int>(threads.size()),
          .read_gbps = ReadGbps(threads),
          .peaks = MeasurePeaks(host.isa, threads)};
}

}  // namespace somnus
