#pragma once
// Where the kernel places the pages of this process.

#include <cstdint>
#include <fstream>
#include <string>

namespace somnus {

// The policy word of /proc/self/numa_maps for the mapping that `address` is in.
inline std::string PolicyAt(const void* address) {
  std::ifstream maps("/proc/self/numa_maps");
  uintptr_t begin = 0;
  std::string policy, word, rest;
  while (maps >> std::hex >> begin >> word && begin <= reinterpret_cast<uintptr_t>(address)) {
    policy = word;
    std::getline(maps, rest);
  }
  return policy;
}

}  // namespace somnus
