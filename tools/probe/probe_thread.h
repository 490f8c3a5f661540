#pragma once
// The threads that the ceilings of a machine are measured with.

#include <vector>

namespace somnus {

struct ProbeThread {
  int cpu = 0;       // that it is pinned to
  double speed = 1;  // of its core: the share of the work that it has, as a part of what the fastest have
  // That what it reads comes from, as PlacePages takes them (base/numa.h); none, or where the kernel refuses
  // to place pages: the node of its CPU, because the thread itself is the first that touches it.
  std::vector<int> memory_nodes = {};
};

// So many threads, at least one and no more than CPUs, on the first CPUs that the process may use.
std::vector<ProbeThread> ThreadsOnFirstCpus(int num_threads);

}  // namespace somnus
