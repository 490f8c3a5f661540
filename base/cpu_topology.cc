#include "base/cpu_topology.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/first_line.h"
#include "base/numa.h"

namespace somnus {
namespace {

std::vector<int> ReadCpus(const std::string& path) {
  return ParseCpuList(FirstLine(path)).value_or(std::vector<int>());
}

// Arm's kernels name the capacity of each CPU, Intel's drivers list the CPUs of the two kinds of cores.
std::vector<int> SlowCpus(const std::string& devices, const std::vector<int>& online) {
  std::set<int> slow;
  for (const int cpu : ReadCpus(devices + "/cpu_atom/cpus")) slow.insert(cpu);
  std::map<int, int64_t> capacities;
  int64_t fastest = 0;
  for (const int cpu : online) {
    int64_t capacity = 0;
    if (!absl::SimpleAtoi(FirstLine(absl::StrCat(devices, "/system/cpu/cpu", cpu, "/cpu_capacity")),
                          &capacity))
      continue;
    capacities[cpu] = capacity;
    fastest = std::max(fastest, capacity);
  }
  for (const auto& [cpu, capacity] : capacities) {
    if (2 * capacity < fastest) slow.insert(cpu);
  }
  return {slow.begin(), slow.end()};
}

}  // namespace

CpuTopology ReadCpuTopology(const std::string& root) {
  const std::string devices = root + "/sys/devices";
  const std::vector<int> online = ReadCpus(devices + "/system/cpu/online");
  CpuTopology topology;
  std::set<int> seen;
  for (const int cpu : online) {
    if (seen.count(cpu) > 0) continue;
    std::vector<int> core =
        ReadCpus(absl::StrCat(devices, "/system/cpu/cpu", cpu, "/topology/thread_siblings_list"));
    // A list that does not name the CPU itself says nothing of it.
    if (std::find(core.begin(), core.end(), cpu) == core.end()) core = {cpu};
    seen.insert(core.begin(), core.end());
    topology.cores.push_back(std::move(core));
  }
  topology.slow = SlowCpus(devices, online);
  return topology;
}

std::vector<int> SpareCpus(const CpuTopology& topology, absl::Span<const int> allowed) {
  const auto is_allowed = [&](int cpu) { return std::binary_search(allowed.begin(), allowed.end(), cpu); };
  const auto is_slow = [&](int cpu) {
    return std::binary_search(topology.slow.begin(), topology.slow.end(), cpu);
  };
  const bool all_are_slow = std::all_of(allowed.begin(), allowed.end(), is_slow);
  std::set<int> spare;
  for (const int cpu : allowed) {
    if (is_slow(cpu) && !all_are_slow) spare.insert(cpu);
  }
  for (const std::vector<int>& core : topology.cores) {
    const auto first = std::find_if(core.begin(), core.end(), is_allowed);
    if (first == core.end()) continue;
    for (auto cpu = first + 1; cpu != core.end(); ++cpu) {
      if (is_allowed(*cpu)) spare.insert(*cpu);
    }
  }
  return {spare.begin(), spare.end()};
}

}  // namespace somnus
