#pragma once
// Where a worker runs: its CPUs, how many threads compute there, and the NUMA nodes that its host memory
// comes from. Pure functions.
//
// Workers of one host divide the CPUs that they may use in common. Where a launcher has given each its own
// (Slurm's --cpu-bind=cores, taskset), there is nothing to divide.
//
// A worker on a GPU belongs to the node of its GPU. Workers on CPUs divide the nodes of their host: where
// there are as many workers as nodes, or more, each worker computes on one node and has its memory there;
// where there are fewer workers, each computes on several nodes, and its memory comes from these nodes in
// turns, so that the bandwidth of all is used. One CPU of each core computes (base/cpu_topology.h), and where
// cores have several speeds, core_shares.h says which cores compute, unless more threads are asked for.
// Without pins one CPU computes of each core that has at least half the speed of the fastest core: threads
// whose cores change would have the wrong shares.

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/numa.h"
#include "kernels/device.h"

namespace somnus {

struct PlacementRequest {
  NumaOption numa;
  DeviceKind device = DeviceKind::kCpu;
  std::optional<int> gpu_node;   // where the GPU is; nothing: the kernel does not know
  int ranks_on_host = 1;         // whose CPUs are not disjoint from this one's; itself among them
  int index_on_host = 0;         // among them
  int other_ranks = 0;           // of the host, whose CPUs are others; a quota is for them, too
  int num_threads = 0;           // that it was told to have; 0: the ranks divide the CPUs
  bool pins = false;             // threads are pinned where each has a CPU of its own
  std::optional<int> first_cpu;  // threads are pinned from there on, counted among the allowed CPUs
};

// The CPUs and the nodes that a process may use.
struct HostCpus {
  std::vector<NumaNode> nodes;  // of the host
  std::vector<int> allowed;     // AllowedCpus()
  int num_cpus = 0;             // NumAllowedCpus()
  std::vector<int> siblings;    // SiblingCpus() of these: they compute only where more threads are asked for
  std::map<int, double> speeds = {};  // as in CpuTopology
};

struct Placement {
  std::vector<int> memory_nodes;  // as PlacePages takes them; none: the kernel chooses
  std::vector<int>
      cpus;  // to which the process is restricted, spare CPUs last; none: the inherited mask stays
  int num_threads = 1;
  // Threads that make pages and copy memory, on any of `cpus`: as many as compute for all ranks there, but no
  // more than 16 where the rank itself has fewer. Ranks have unequal amounts of memory, so the CPUs of a rank
  // that is done help the other ranks.
  int memory_threads = 1;
  int first_cpu = -1;  // as in CpuDeviceOptions, among `cpus` where there are any
  bool spins = false;  // as in CpuDeviceOptions: each thread of the ranks there has a CPU of its own
  std::vector<double> thread_speeds;  // as in CpuDeviceOptions; none: all threads are alike
  std::string description;            // for people: "node 1, CPUs 8-15"
};

// The CPU of each thread; none where threads are not pinned. `allowed`: as in HostCpus.
std::vector<int> PinnedCpus(const Placement& placement, const std::vector<int>& allowed);

// InvalidArgument: the node that was asked for does not exist, or has no CPU that the process may run on.
absl::StatusOr<Placement> ChoosePlacement(const PlacementRequest& request, const HostCpus& host);

}  // namespace somnus
