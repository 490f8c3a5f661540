#pragma once
// Which CPUs of a host share a core, and how fast its cores are. Thread safe.
//
// A thread that computes keeps the units of its core busy, so a second one on the same core makes no step
// faster: one CPU of each core computes, and the others are left to threads that wait for most of their time.
// Which cores of several speeds compute is decided where they are divided (worker/core_shares.h).

#include <map>
#include <string>
#include <vector>

#include "absl/types/span.h"

namespace somnus {

struct CpuTopology {
  // By core, in the order of their first CPUs; of each its CPUs, ascending. CPUs that are offline are
  // missing.
  std::vector<std::vector<int>> cores;
  // By CPU: the arithmetic that its core does in a second, as a part of what the fastest cores do, which have
  // 1. An estimate from what the kernel tells (cpu_topology.cc). Cores that differ little have one speed.
  // Empty: all are alike, or the kernel tells nothing.
  std::map<int, double> speeds;
};

// Empty where the kernel tells nothing. `root` stands before /sys, for tests.
CpuTopology ReadCpuTopology(const std::string& root = "");

// Of the CPUs `allowed`, ascending: all but the first allowed one of each core. Ascending.
std::vector<int> SiblingCpus(const CpuTopology& topology, absl::Span<const int> allowed);

}  // namespace somnus
