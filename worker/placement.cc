#include "worker/placement.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"

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

bool IsSpare(const HostCpus& host, int cpu) {
  return std::binary_search(host.spare.begin(), host.spare.end(), cpu);
}

// `cpus` as threads take them. Those that the command line pins count the CPUs as they are.
std::vector<int> InOrder(const PlacementRequest& request, const HostCpus& host, std::vector<int> cpus) {
  if (!request.first_cpu.has_value())
    std::stable_partition(cpus.begin(), cpus.end(), [&host](int cpu) { return !IsSpare(host, cpu); });
  return cpus;
}

// The ranks of the host that share some CPUs.
struct Share {
  int ranks = 1;  // this one among them
  int index = 0;  // among them
};

// Divides CPUs among the ranks that share them.
Placement Divide(const PlacementRequest& request, const HostCpus& host, absl::Span<const int> cpus,
                 const Share& share) {
  const int num_cpus = static_cast<int>(cpus.size());
  Placement placement;
  placement.num_threads = request.num_threads;
  if (request.num_threads == 0) {
    // A quota is for all ranks of the host together. As many threads as the others have, since they wait for
    // each other.
    const bool has_quota = host.num_cpus < static_cast<int>(host.allowed.size());
    const int ranks = request.ranks_on_host + (has_quota ? request.other_ranks : 0);
    const int num_spare =
        std::count_if(cpus.begin(), cpus.end(), [&host](int cpu) { return IsSpare(host, cpu); });
    placement.num_threads =
        std::max(1, std::min((num_cpus - num_spare) / share.ranks, host.num_cpus / ranks));
  }
  const int threads = placement.num_threads * share.ranks;
  placement.spins = threads <= std::min(num_cpus, host.num_cpus);
  if (request.first_cpu.has_value()) {
    placement.first_cpu = *request.first_cpu;
  } else if (request.pins && threads <= num_cpus) {
    placement.first_cpu = share.index * placement.num_threads;
  }
  return placement;
}

Placement AsItIs(const PlacementRequest& request, const HostCpus& host, std::string description) {
  Placement placement = Divide(request, host, host.allowed, {request.ranks_on_host, request.index_on_host});
  if (!host.spare.empty() && !request.first_cpu.has_value())
    placement.cpus = InOrder(request, host, host.allowed);
  placement.description = std::move(description);
  return placement;
}

Placement OnNode(const PlacementRequest& request, const HostCpus& host, const NumaNode& node,
                 const Share& share) {
  Placement placement = Divide(request, host, node.cpus, share);
  placement.memory_nodes = {node.id};
  placement.cpus = InOrder(request, host, node.cpus);
  placement.description = absl::StrCat("node ", node.id, ", CPUs ", CpuListText(node.cpus));
  return placement;
}

// Consecutive ranks share a node; of two nodes and three ranks, the first two do.
Placement OnOneOf(const PlacementRequest& request, const HostCpus& host, const std::vector<NumaNode>& nodes) {
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
Placement OnSeveral(const PlacementRequest& request, const HostCpus& host,
                    const std::vector<NumaNode>& nodes) {
  Placement placement = AsItIs(request, host, "");
  if (!request.first_cpu.has_value()) {  // which counts the CPUs as they are
    std::vector<int> all;
    for (const NumaNode& node : nodes) all.insert(all.end(), node.cpus.begin(), node.cpus.end());
    placement.cpus = InOrder(request, host, std::move(all));
  }
  const std::vector<int>& cpus = placement.cpus.empty() ? host.allowed : placement.cpus;
  std::vector<int> mine = cpus;
  if (placement.first_cpu >= 0) {
    mine.clear();
    for (int i = 0; i < placement.num_threads; ++i)
      mine.push_back(cpus[(placement.first_cpu + i) % cpus.size()]);
  }
  for (const NumaNode& node : nodes) {
    if (std::any_of(mine.begin(), mine.end(), [&node](int cpu) { return Has(node, cpu); }))
      placement.memory_nodes.push_back(node.id);
  }
  const bool is_one = placement.memory_nodes.size() == 1;
  placement.description = absl::StrCat(is_one ? "node " : "nodes ", CpuListText(placement.memory_nodes),
                                       is_one ? "" : ", memory of each in turns");
  return placement;
}

absl::StatusOr<Placement> OnAskedNode(const PlacementRequest& request, const HostCpus& host,
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

Placement OnNodeOfGpu(const PlacementRequest& request, const HostCpus& host,
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

absl::StatusOr<Placement> Choose(const PlacementRequest& request, const HostCpus& host) {
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

}  // namespace

absl::StatusOr<Placement> ChoosePlacement(const PlacementRequest& request, const HostCpus& host) {
  absl::StatusOr<Placement> placement = Choose(request, host);
  if (placement.ok() && request.num_threads == 0 && !host.spare.empty())
    absl::StrAppend(&placement->description, ", one thread for each fast core");
  return placement;
}

}  // namespace somnus
