#include "tools/doctor/host_report.h"

#include <stdlib.h>

#include <algorithm>
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
#include "tools/bench/machine_probe.h"

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

// "always [madvise] never": the one in brackets.
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
    const std::vector<int>& cpus = placement.cpus.empty() ? host.allowed : placement.cpus;
    if (placement.first_cpu < 0 || cpus.empty()) continue;
    for (int i = 0; i < placement.num_threads; ++i) idle.erase(cpus[(placement.first_cpu + i) % cpus.size()]);
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
    const PlacementRequest request = {.ranks_on_host = num_workers, .index_on_host = i, .pins = true};
    ASSIGN_OR_RETURN(report.placements.emplace_back(), ChoosePlacement(request, host));
  }
  report.slow = SlowCpus(report);
  return report;
}

HostCeilings MeasureCeilings(const HostReport& host) {
  HostCeilings ceilings;
  for (const Placement& placement : host.placements) ceilings.num_threads += placement.num_threads;
  ceilings.num_threads = std::clamp<int>(ceilings.num_threads, 1, host.allowed.size());
  ceilings.read_gbps = ReadGbps(ceilings.num_threads);
  ceilings.peaks = MeasurePeaks(host.isa, ceilings.num_threads);
  return ceilings;
}

}  // namespace somnus
