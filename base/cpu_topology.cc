#include "base/cpu_topology.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <set>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/first_line.h"
#include "base/numa.h"

namespace somnus {
namespace {

std::vector<int> ReadCpus(const std::string& path) {
  return ParseCpuList(FirstLine(path)).value_or(std::vector<int>());
}

// The vectors of Intel's efficiency cores have half the width of the performance cores', and their
// multiply-adds take twice the cycles; their clock is about three quarters, where the kernel does not tell
// the clock.
constexpr double kNarrowUnits = 0.5;
constexpr double kUsualClock = 0.75;
// Cores whose speeds differ by less are alike: the greatest clock of a favoured core holds for one core at a
// time, and when all compute their clocks are equal.
constexpr double kAlike = 0.85;

// The number in a file of each CPU; nothing where some CPU has no such number.
std::optional<std::map<int, double>> NumberOfEach(const std::string& devices, const std::vector<int>& cpus,
                                                  absl::string_view file) {
  std::map<int, double> numbers;
  for (const int cpu : cpus) {
    int64_t number = 0;
    const std::string path = absl::StrCat(devices, "/system/cpu/cpu", cpu, "/", file);
    if (!absl::SimpleAtoi(FirstLine(path), &number) || number <= 0) return std::nullopt;
    numbers[cpu] = static_cast<double>(number);
  }
  return numbers;
}

// Intel's drivers list the CPUs of the efficiency cores, Arm's kernels tell the capacity of each core, and
// other kernels each core's greatest clock. In no particular unit.
std::map<int, double> RawSpeeds(const std::string& devices, const std::vector<int>& online) {
  const std::vector<int> efficient = ReadCpus(devices + "/cpu_atom/cpus");
  const auto clocks = NumberOfEach(devices, online, "cpufreq/cpuinfo_max_freq");
  if (efficient.empty()) {
    const auto capacities = NumberOfEach(devices, online, "cpu_capacity");
    return capacities.has_value() ? *capacities : clocks.value_or(std::map<int, double>());
  }
  std::map<int, double> speeds;
  for (const int cpu : online) speeds[cpu] = clocks.has_value() ? clocks->at(cpu) : 1;
  for (const int cpu : efficient) {
    const auto speed = speeds.find(cpu);
    if (speed != speeds.end())
      speed->second *= clocks.has_value() ? kNarrowUnits : kNarrowUnits * kUsualClock;
  }
  return speeds;
}

// Cores that are alike get the speed of the slowest core among them.
std::map<int, double> ReadSpeeds(const std::string& devices, const std::vector<int>& online) {
  const std::map<int, double> raw = RawSpeeds(devices, online);
  std::vector<double> descending;
  for (const auto& [cpu, speed] : raw) descending.push_back(speed);
  std::sort(descending.begin(), descending.end(), std::greater<>());
  std::map<double, double> common;  // by raw speed
  for (size_t first = 0, next; first < descending.size(); first = next) {
    next = first;
    while (next < descending.size() && descending[next] >= kAlike * descending[first]) ++next;
    for (size_t i = first; i < next; ++i) common[descending[i]] = descending[next - 1];
  }
  std::map<int, double> speeds;
  if (common.empty() || common.begin()->second == common.rbegin()->second) return speeds;
  for (const auto& [cpu, speed] : raw) speeds[cpu] = common[speed] / common.rbegin()->second;
  return speeds;
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
    // A list that does not name the CPU itself says nothing about this CPU.
    if (std::find(core.begin(), core.end(), cpu) == core.end()) core = {cpu};
    seen.insert(core.begin(), core.end());
    topology.cores.push_back(std::move(core));
  }
  topology.speeds = ReadSpeeds(devices, online);
  return topology;
}

std::vector<int> SiblingCpus(const CpuTopology& topology, absl::Span<const int> allowed) {
  const auto is_allowed = [&](int cpu) { return std::binary_search(allowed.begin(), allowed.end(), cpu); };
  std::set<int> siblings;
  for (const std::vector<int>& core : topology.cores) {
    const auto first = std::find_if(core.begin(), core.end(), is_allowed);
    if (first == core.end()) continue;
    for (auto cpu = first + 1; cpu != core.end(); ++cpu) {
      if (is_allowed(*cpu)) siblings.insert(*cpu);
    }
  }
  return {siblings.begin(), siblings.end()};
}

}  // namespace somnus
