#include "tools/bench/probe_thread.h"

#include <algorithm>

#include "base/cpus.h"

namespace somnus {

std::vector<ProbeThread> ThreadsOnFirstCpus(int num_threads) {
  const std::vector<int> cpus = AllowedCpus();
  std::vector<ProbeThread> threads;
  for (int t = 0; t < std::clamp<int>(num_threads, 1, cpus.size()); ++t) threads.push_back({.cpu = cpus[t]});
  return threads;
}

}  // namespace somnus
