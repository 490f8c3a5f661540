#pragma once
// The control groups of this process: where their limits are to be read.

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace somnus {

struct CgroupDirectory {
  bool is_v2 = false;
  std::string path;
};

// The directories that may hold limits of `controller` ("cpu", "memory") for this process: the mount itself,
// the directory of the process's group, and all directories in between, of v2 and v1. A limit in any
// directory holds; some may not exist. `root` stands before /proc and /sys, for tests.
std::vector<CgroupDirectory> CgroupsOf(absl::string_view controller, const std::string& root = "");

// How many CPUs' worth of time the process's groups may use in every period, the least of all quotas
// (cpu.max; cpu.cfs_quota_us and cpu.cfs_period_us); 0 without a quota.
double CpuQuota(const std::string& root = "");

}  // namespace somnus
