#include "worker/placement.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "base/status_macros.h"
#include "worker/core_shares.h"

namespace somnus {
namespace {

bool Has(const NumaNode& node, int cpu) {
  return std::binary_search(node.cpus.begin(), node.cpus.end(), cpu);
}

// Nodes with those of their CPUs that the process may run on; nodes without any are left out.
std::vector<NumaNode> UsableNodes(const HostCpus& host) {
  std::vector<NumaNode> usable;
  for (const NumaNode& node : host.nodes) {
    NumaNode mine = {node.id, {}};
    for (const int cpu : host.allowed) {
      if (Has(node, cpu)) mine.cpus.push_back(cpu);
    }
    if (!mine.cpus.empty()) usable.push_back(std::move(mine));
  }
  return usable;
}

// A host with the CPUs on which nothing computes, unless more threads are asked for, or shares go by speed:
// siblings, and those of less than half the speed of the fastest that the process may use.
struct Host : HostCpus {
  explicit Host(const HostCpus& cpus) : HostCpus(cpus), spare(cpus.siblings) {
    double fastest = 0;
    for (const int cpu : allowed) fastest = std::max(fastest, SpeedOf(speeds, cpu));
    for (const int cpu : allowed) {
      if (2 * SpeedOf(speeds, cpu) < fastest && !IsSibling(cpu)) spare.push_back(cpu);
    }
    std::sort(spare.begin(), spare.end());
  }
  bool IsSibling(int cpu) const { return std::binary_search(siblings.begin(), siblings.end(), cpu); }
  bool IsSpare(int cpu) const { return std::binary_search(spare.begin(), spare.end(), cpu); }

  std::vector<int> spare;
};

// The ranks of the host that share some CPUs.
struct Share {
  int ranks = 1;  // this one among them
  int index = 0;  // among them
};

constexpr int kMostMemoryThreads = 16;  // where a rank has fewer of its own

// As many threads as the others have, since they wait for each other.
int NumThreads(const PlacementRequest& request, const Host& host, int num_cores, const Share& share) {
  // A quota is for all ranks of the host together.
  const bool has_quota = host.num_cpus < static_cast<int>(host.allowed.size());
  const int ranks = request.ranks_on_host + (has_quota ? request.other_ranks : 0);
  return std::max(1, std::min(num_cores / share.ranks, host.num_cpus / ranks));
}

std::optional<CoreShares> ShareBySpeed(const PlacementRequest& request, const Host& host,
                                       absl::Span<const int> cpus, const Share& share) {
  if (!request.pins || request.first_cpu.has_value() || host.speeds.empty()) return std::nullopt;
  CoreSharesRequest cores = {.ranks = share.ranks, .num_threads = request.num_threads};
  for (const int cpu : cpus) (host.IsSibling(cpu) ? cores.others : cores.cores).push_back(cpu);
  cores.most_threads = NumThreads(request, host, static_cast<int>(cores.cores.size()), share);
  return ShareCores(cores, host.speeds);
}

// Divides CPUs among the ranks that share them.
Placement Divide(const PlacementRequest& request, const Host& host, absl::Span<const int> cpus,
                 const Share& share) {
  const int num_cpus = static_cast<int>(cpus.size());
  Placement placement;
  placement.num_threads = request.num_threads;
  placement.cpus.assign(cpus.begin(), cpus.end());
  const auto computes = [&host](int cpu) { return !host.IsSpare(cpu); };
  if (std::optional<CoreShares> shares = ShareBySpeed(request, host, cpus, share)) {
    placement.num_threads = shares->num_threads;
    placement.cpus = std::move(shares->cpus);
    placement.description = std::move(shares->description);
  } else {
    if (request.num_threads == 0) {
      const auto num_cores = static_cast<int>(std::count_if(cpus.begin(), cpus.end(), computes));
      placement.num_threads = NumThreads(request, host, num_cores, share);
      if (!host.spare.empty()) placement.description = "one thread for each fast core";
    }
    // Pins of the command line count the CPUs as they are.
    if (!request.first_cpu.has_value())
      std::stable_partition(placement.cpus.begin(), placement.cpus.end(), computes);
  }
  const int threads = placement.num_threads * share.ranks;
  const int most = std::min(num_cpus, host.num_cpus);
  placement.spins = threads <= most;
  placement.memory_threads = std::max(placement.num_threads, std::min({threads, most, kMostMemoryThreads}));
  if (request.first_cpu.has_value()) {
    placement.first_cpu = *request.first_cpu;
  } else if (request.pins && threads <= num_cpus) {
    placement.first_cpu = share.index * placement.num_threads;
  }
  return placement;
}

// Says where it is, before what was said of its cores.
void Describe(std::string where, Placement* placement) {
  if (!placement->description.empty()) absl::StrAppend(&where, ", ", placement->description);
  placement->description = std::move(where);
}

Placement AsItIs(const PlacementRequest& request, const Host& host, std::string description) {
  Placement placement = Divide(request, host, host.allowed, {request.ranks_on_host, request.index_on_host});
  const bool are_alike = host.siblings.empty() && host.speeds.empty();
  if (are_alike || request.first_cpu.has_value()) placement.cpus.clear();
  Describe(std::move(description), &placement);
  return placement;
}

Placement OnNode(const PlacementRequest& request, const Host& host, const NumaNode& node,
                 const Share& share) {
  Placement placement = Divide(request, host, node.cpus, share);
  placement.memory_nodes = {node.id};
  Describe(absl::StrCat("node ", node.id, ", CPUs ", CpuListText(node.cpus)), &placement);
  return placement;
}

// Consecutive ranks share a node; of two nodes and three ranks, the first two do.
Placement OnOneOf(const PlacementRequest& request, const Host& host, const std::vector<NumaNode>& nodes) {
  const int num_nodes = static_cast<int>(nodes.size());
  const auto node_of = [&](int index) { return index * num_nodes / request.ranks_on_host; };
  const int mine = node_of(request.index_on_host);
  Share share = {0, 0};
  for (int index = 0; index < request.ranks_on_host; ++index) {
    if (node_of(index) != mine) continue;
    ++share.ranks;
    if (index < request.index_on_host) ++share.index;
  }
  return OnNode(request, host, nodes[mine], share);
}

// Memory comes from the nodes of the CPUs that its threads are pinned to, and without pins from all.
Placement OnSeveral(const PlacementRequest& request, const Host& host, const std::vector<NumaNode>& nodes) {
  std::vector<int> all;
  for (const NumaNode& node : nodes) all.insert(all.end(), node.cpus.begin(), node.cpus.end());
  if (request.first_cpu.has_value()) all = host.allowed;  // it counts the CPUs as they are
  Placement placement = Divide(request, host, all, {request.ranks_on_host, request.index_on_host});
  if (request.first_cpu.has_value()) placement.cpus.clear();
  std::vector<int> mine = PinnedCpus(placement, host.allowed);
  if (mine.empty()) mine = placement.cpus.empty() ? host.allowed : placement.cpus;
  for (const NumaNode& node : nodes) {
    if (std::any_of(mine.begin(), mine.end(), [&node](int cpu) { return Has(node, cpu); }))
      placement.memory_nodes.push_back(node.id);
  }
  const bool is_one = placement.memory_nodes.size() == 1;
  Describe(absl::StrCat(is_one ? "node " : "nodes ", CpuListText(placement.memory_nodes),
                        is_one ? "" : ", memory of each in turns"),
           &placement);
  return placement;
}

absl::StatusOr<Placement> OnAskedNode(const PlacementRequest& request, const Host& host,
                                      const std::vector<NumaNode>& usable) {
  std::vector<int> ids;
  for (const NumaNode& node : usable) {
    if (node.id == request.numa.node)
      return OnNode(request, host, node, {request.ranks_on_host, request.index_on_host});
    ids.push_back(node.id);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("numa: node ", request.numa.node, " has no CPU for this worker, whose CPUs are of ",
                   ids.empty() ? "no node that the kernel names" : absl::StrCat("node ", CpuListText(ids))));
}

Placement OnNodeOfGpu(const PlacementRequest& request, const Host& host,
                      const std::vector<NumaNode>& usable) {
  if (!request.gpu_node.has_value()) return AsItIs(request, host, "unknown: the GPU has no node");
  const Share share = {request.ranks_on_host, request.index_on_host};
  for (const NumaNode& node : usable) {
    if (node.id == *request.gpu_node) return OnNode(request, host, node, share);
  }
  Placement placement = AsItIs(request, host, absl::StrCat("node ", *request.gpu_node, ", CPUs of others"));
  placement.memory_nodes = {*request.gpu_node};
  return placement;
}

absl::StatusOr<Placement> Choose(const PlacementRequest& request, const Host& host) {
  if (request.numa.kind == NumaOption::Kind::kOff) return AsItIs(request, host, "off");
  const std::vector<NumaNode> usable = UsableNodes(host);
  if (request.numa.kind == NumaOption::Kind::kNode) return OnAskedNode(request, host, usable);
  if (host.nodes.size() <= 1) return AsItIs(request, host, "one node");
  if (request.device == DeviceKind::kCuda) return OnNodeOfGpu(request, host, usable);
  if (usable.empty()) return AsItIs(request, host, "unknown: its CPUs are of no node");
  if (request.first_cpu.has_value()) return OnSeveral(request, host, usable);
  if (usable.size() == 1)
    return OnNode(request, host, usable.front(), {request.ranks_on_host, request.index_on_host});
  if (request.ranks_on_host >= static_cast<int>(usable.size())) return OnOneOf(request, host, usable);
  return OnSeveral(request, host, usable);
}

// Shares go by speed where each thread has a core of its own.
std::vector<double> ThreadSpeeds(const Placement& placement, const Host& host) {
  if (host.speeds.empty()) return {};
  std::vector<double> speeds;
  for (const int cpu : PinnedCpus(placement, host.allowed)) {
    if (host.IsSibling(cpu)) return {};
    speeds.push_back(SpeedOf(host.speeds, cpu));
  }
  const bool are_alike = std::all_of(speeds.begin(), speeds.end(), [&](double s) { return s == speeds[0]; });
  return are_alike ? std::vector<double>() : speeds;
}

}  // namespace

std::vector<int> PinnedCpus(const Placement& placement, const std::vector<int>& allowed) {
  const std::vector<int>& cpus = placement.cpus.empty() ? allowed : placement.cpus;
  std::vector<int> pinned;
  if (placement.first_cpu < 0 || cpus.empty()) return pinned;
  for (int i = 0; i < placement.num_threads; ++i)
    pinned.push_back(cpus[(placement.first_cpu + i) % cpus.size()]);
  return pinned;
}

absl::StatusOr<Placement> ChoosePlacement(const PlacementRequest& request, const HostCpus& cpus) {
  const Host host(cpus);
  ASSIGN_OR_RETURN(Placement placement, Choose(request, host));
  placement.thread_speeds = ThreadSpeeds(placement, host);
  return placement;
}

}  // namespace somnus
