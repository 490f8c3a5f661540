#pragma once
// Which CPUs of a host share a core, and which are slow. Thread safe.
//
// A thread that computes keeps the units of its core busy, and all threads of a step wait for the last one: a
// second one on the same core, or one on a slow core, makes no step faster. So one CPU of each fast core
// computes, and the others are left to threads that wait for most of their time.

#include <string>
#include <vector>

#include "absl/types/span.h"

namespace somnus {

struct CpuTopology {
  // By core, in the order of their first CPUs; of each its CPUs, ascending. CPUs that are offline are
  // missing.
  std::vector<std::vector<int>> cores;
  // Ascending: a hybrid processor's efficiency cores, and cores of less than half the capacity of the
  // fastest.
  std::vector<int> slow;
};

// Empty where the kernel tells nothing. `root` stands before /sys, for tests.
CpuTopology ReadCpuTopology(const std::string& root = "");

// Of the CPUs `allowed`, ascending, those on which nothing should compute: all but the first allowed one of
// each core, and the slow ones unless all are slow. Ascending.
std::vector<int> SpareCpus(const CpuTopology& topology, absl::Span<const int> allowed);

}  // namespace somnus
