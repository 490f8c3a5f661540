#pragma once
// The threads that the ceilings of a machine are measured with.

#include <vector>

namespace somnus {

struct ProbeThread {
  int cpu = 0;       // the CPU that the thread is pinned to
  double speed = 1;  // of the core: the thread's share of the work, relative to the fastest threads
  // The nodes of the memory that the thread reads, as for PlacePages (base/numa.h). Empty, or where the
  // kernel refuses to place pages: the node of the thread's CPU, because the thread itself touches the memory
  // first.
  std::vector<int> memory_nodes = {};
};

// So many threads, at least one and no more than CPUs, on the first CPUs that the process may use.
std::vector<ProbeThread> ThreadsOnFirstCpus(int num_threads);

}  // namespace somnus
