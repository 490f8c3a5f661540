#pragma once
// How much memory this process may still take on this host.

#include <cstdint>
#include <string>

namespace somnus {

// The smaller of two numbers: the available memory as the kernel counts (/proc/meminfo), and the memory that
// the process's cgroup and every cgroup above leave (v2 and v1; page cache that the kernel can drop counts as
// left). `root` stands before /proc and /sys, for tests. Without readable numbers: the total of physical
// memory.
int64_t AvailableHostMemory(const std::string& root = "");

}  // namespace somnus
