#include "tools/probe/probe_thread.h"

#include <algorithm>
#include <cstddef>

#include "base/cpus.h"

namespace somnus {

std::vector<ProbeThread> ThreadsOnFirstCpus(int num_threads) {
  const std::vector<int> cpus = AllowedCpus();
  std::vector<ProbeThread> threads;
  const size_t count = std::min(static_cast<size_t>(std::max(num_threads, 1)), cpus.size());
  for (size_t t = 0; t < count; ++t) threads.push_back({.cpu = cpus[t]});
  return threads;
}

}  // namespace somnus
