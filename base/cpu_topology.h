#pragma once
// Which CPUs of a host share a core, and how fast the cores are. Thread safe.
//
// A thread that computes keeps the units of its core busy, so a second thread on the same core makes no step
// faster: a single CPU of each core computes, and the rest are left to threads that mostly wait. Which cores
// of several speeds compute is decided where cores are divided (worker/core_shares.h).

#include <map>
#include <string>
#include <vector>

#include "absl/types/span.h"

namespace somnus {

struct CpuTopology {
  // The CPUs of each core, ascending; cores in the order of their first CPUs. CPUs that are offline are
  // missing.
  std::vector<std::vector<int>> cores;
  // By CPU: the arithmetic that the CPU's core does in a second, relative to the fastest cores, which have 1.
  // An estimate from the kernel's numbers (cpu_topology.cc). Cores that differ little have the same speed.
  // Empty: all cores are alike, or the kernel tells nothing.
  std::map<int, double> speeds;
};

// Empty where the kernel tells nothing. `root` stands before /sys, for tests.
CpuTopology ReadCpuTopology(const std::string& root = "");

// All CPUs of `allowed` (ascending) except the first allowed CPU of each core. Ascending.
std::vector<int> SiblingCpus(const CpuTopology& topology, absl::Span<const int> allowed);

}  // namespace somnus
