// Which CPUs and which nodes' memory a worker takes, on hosts of all kinds.

#include "worker/placement.h"

#include <gtest/gtest.h>

#include <numeric>

namespace somnus {
namespace {

using Cpus = std::vector<int>;

Cpus Range(int begin, int end) {
  Cpus cpus(end - begin);
  std::iota(cpus.begin(), cpus.end(), begin);
  return cpus;
}

// Two nodes of eight CPUs, numbered as two threads of a core are: 0-3 and 8-11, 4-7 and 12-15.
HostCpus TwoNodes() {
  HostCpus host;
  host.nodes = {{0, {0, 1, 2, 3, 8, 9, 10, 11}}, {1, {4, 5, 6, 7, 12, 13, 14, 15}}};
  host.allowed = Range(0, 16);
  host.num_cpus = 16;
  return host;
}

HostCpus OneNode(int cpus) { return {{{0, Range(0, cpus)}}, Range(0, cpus), cpus, {}}; }

PlacementRequest Rank(int index, int of) {
  return {.ranks_on_host = of, .index_on_host = index, .pins = true};
}

Placement Choose(const PlacementRequest& request, const HostCpus& host) {
  const absl::StatusOr<Placement> placement = ChoosePlacement(request, host);
  EXPECT_TRUE(placement.ok()) << placement.status();
  return placement.value_or(Placement());
}

TEST(Placement, OneNodeIsDividedByItsRanks) {
  const Placement placement = Choose(Rank(1, 3), OneNode(8));
  EXPECT_TRUE(placement.cpus.empty());
  EXPECT_TRUE(placement.memory_nodes.empty());
  EXPECT_EQ(placement.num_threads, 2);
  EXPECT_EQ(placement.first_cpu, 2);
  EXPECT_TRUE(placement.spins);
  EXPECT_EQ(placement.description, "one node");
}

// Ranks have unequal parts of a model, and all CPUs are idle while memory is mapped.
TEST(Placement, PagesAreMadeOnTheCpusOfAllRanks) {
  EXPECT_EQ(Choose(Rank(0, 2), OneNode(2)).memory_threads, 2);
  EXPECT_EQ(Choose(Rank(1, 3), OneNode(8)).memory_threads, 6);
  EXPECT_EQ(Choose(Rank(0, 1), OneNode(8)).memory_threads, 8);
  EXPECT_EQ(Choose(Rank(0, 4), OneNode(64)).memory_threads, 16);
  EXPECT_EQ(Choose(Rank(0, 2), OneNode(64)).memory_threads, 32) << "its own";
  HostCpus host = OneNode(8);
  host.num_cpus = 3;
  EXPECT_EQ(Choose(Rank(0, 2), host).memory_threads, 2) << "a quota";
  EXPECT_EQ(Choose(Rank(0, 2), TwoNodes()).memory_threads, 8) << "those of its node";
}

TEST(Placement, CpusThatNoOtherRankMayUseAreNotDivided) {
  PlacementRequest request = Rank(0, 1);
  request.other_ranks = 3;
  EXPECT_EQ(Choose(request, OneNode(8)).num_threads, 8);
  HostCpus host = OneNode(8);
  host.num_cpus = 4;
  EXPECT_EQ(Choose(request, host).num_threads, 1) << "a quota is for all ranks of the host";
}

TEST(Placement, WhereTheKernelTellsNoNodesThereIsOne) {
  const HostCpus host = {{}, Range(0, 4), 4, {}};
  EXPECT_EQ(Choose(Rank(0, 1), host).description, "one node");
  EXPECT_EQ(Choose(Rank(0, 1), host).num_threads, 4);
}

TEST(Placement, EachOfTwoRanksHasANode) {
  const Placement first = Choose(Rank(0, 2), TwoNodes()), second = Choose(Rank(1, 2), TwoNodes());
  EXPECT_EQ(first.memory_nodes, Cpus{0});
  EXPECT_EQ(first.cpus, (Cpus{0, 1, 2, 3, 8, 9, 10, 11}));
  EXPECT_EQ(second.memory_nodes, Cpus{1});
  EXPECT_EQ(second.num_threads, 8);
  EXPECT_EQ(second.first_cpu, 0) << "among its node's CPUs";
  EXPECT_EQ(second.description, "node 1, CPUs 4-7,12-15");
}

TEST(Placement, ThreeRanksShareTwoNodes) {
  const int nodes[] = {0, 0, 1}, threads[] = {4, 4, 5}, first_cpus[] = {0, 4, 0};
  for (int rank = 0; rank < 3; ++rank) {
    const Placement placement = Choose(Rank(rank, 3), TwoNodes());
    EXPECT_EQ(placement.memory_nodes, Cpus{nodes[rank]});
    EXPECT_EQ(placement.num_threads, threads[rank]);
    EXPECT_EQ(placement.first_cpu, first_cpus[rank]);
    EXPECT_TRUE(placement.spins);
  }
}

TEST(Placement, OneRankTakesMemoryOfAllNodesInTurns) {
  Placement placement = Choose(Rank(0, 1), TwoNodes());
  EXPECT_EQ(placement.memory_nodes, (Cpus{0, 1}));
  EXPECT_EQ(placement.num_threads, 16);
  EXPECT_EQ(placement.cpus, (Cpus{0, 1, 2, 3, 8, 9, 10, 11, 4, 5, 6, 7, 12, 13, 14, 15})) << "node by node";
  EXPECT_EQ(placement.description, "nodes 0-1, memory of each in turns");
  PlacementRequest eight = Rank(0, 1);
  eight.num_threads = 8;  // pinned, all eight are on the first node
  placement = Choose(eight, TwoNodes());
  EXPECT_EQ(placement.memory_nodes, Cpus{0});
  EXPECT_EQ(placement.description, "node 0");
  eight.pins = false;
  EXPECT_EQ(Choose(eight, TwoNodes()).memory_nodes, (Cpus{0, 1}));
}

TEST(Placement, FewerRanksThanNodesHaveNodesOfTheirOwnEach) {
  HostCpus host;
  for (int node = 0; node < 4; ++node) host.nodes.push_back({node, Range(2 * node, 2 * node + 2)});
  host.allowed = Range(0, 8);
  host.num_cpus = 8;
  EXPECT_EQ(Choose(Rank(0, 2), host).memory_nodes, (Cpus{0, 1}));
  EXPECT_EQ(Choose(Rank(1, 2), host).memory_nodes, (Cpus{2, 3}));
}

TEST(Placement, AProcessThatMayUseOneNodeStaysThere) {
  HostCpus host = TwoNodes();
  host.allowed = {5, 6};
  host.num_cpus = 2;
  const Placement placement = Choose(Rank(0, 1), host);
  EXPECT_EQ(placement.memory_nodes, Cpus{1});
  EXPECT_EQ(placement.cpus, (Cpus{5, 6}));
  EXPECT_EQ(placement.description, "node 1, CPUs 5-6");
}

TEST(Placement, NodesWithoutCpusAreNobodys) {
  HostCpus host = TwoNodes();
  host.nodes.push_back({2, {}});
  EXPECT_EQ(Choose(Rank(1, 2), host).memory_nodes, Cpus{1});
  EXPECT_EQ(Choose(Rank(0, 1), host).memory_nodes, (Cpus{0, 1}));
}

TEST(Placement, AGpuDecidesForItsWorker) {
  PlacementRequest request = Rank(0, 2);
  request.device = DeviceKind::kCuda;
  request.gpu_node = 1;
  Placement placement = Choose(request, TwoNodes());
  EXPECT_EQ(placement.memory_nodes, Cpus{1});
  EXPECT_EQ(placement.cpus, (Cpus{4, 5, 6, 7, 12, 13, 14, 15}));
  HostCpus elsewhere = TwoNodes();
  elsewhere.allowed = {0, 1};
  elsewhere.num_cpus = 2;
  placement = Choose(request, elsewhere);
  EXPECT_EQ(placement.memory_nodes, Cpus{1});
  EXPECT_TRUE(placement.cpus.empty());
  EXPECT_EQ(placement.description, "node 1, CPUs of others");
  request.gpu_node.reset();
  placement = Choose(request, TwoNodes());
  EXPECT_TRUE(placement.memory_nodes.empty());
  EXPECT_EQ(placement.description, "unknown: the GPU has no node");
}

TEST(Placement, TheFlagGoesBeforeEverything) {
  PlacementRequest request = Rank(1, 2);
  request.numa = {NumaOption::Kind::kOff, 0};
  Placement placement = Choose(request, TwoNodes());
  EXPECT_TRUE(placement.memory_nodes.empty());
  EXPECT_TRUE(placement.cpus.empty());
  EXPECT_EQ(placement.first_cpu, 8);
  EXPECT_EQ(placement.description, "off");
  request.numa = {NumaOption::Kind::kNode, 0};
  placement = Choose(request, TwoNodes());
  EXPECT_EQ(placement.memory_nodes, Cpus{0});
  EXPECT_EQ(placement.num_threads, 4) << "all ranks of the host are on that node";
  EXPECT_EQ(placement.first_cpu, 4);
  request.numa.node = 7;
  const absl::Status status = ChoosePlacement(request, TwoNodes()).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_EQ(status.message(), "numa: node 7 has no CPU for this worker, whose CPUs are of node 0-1");
}

// The CPUs keep their numbers, which the flag counts.
TEST(Placement, PinsOfTheCommandLineSayWhereMemoryIs) {
  PlacementRequest request = {.ranks_on_host = 2, .num_threads = 4, .first_cpu = 4};
  Placement placement = Choose(request, TwoNodes());
  EXPECT_EQ(placement.first_cpu, 4);
  EXPECT_TRUE(placement.cpus.empty());
  EXPECT_EQ(placement.memory_nodes, Cpus{1});
  request.first_cpu = 14;  // and on from the first
  EXPECT_EQ(Choose(request, TwoNodes()).memory_nodes, (Cpus{0, 1}));
}

TEST(Placement, OneThreadOfEachCoreComputes) {
  HostCpus host = OneNode(8);
  host.siblings = {1, 3, 5, 7};
  const Placement alone = Choose(Rank(0, 1), host);
  EXPECT_EQ(alone.num_threads, 4);
  EXPECT_EQ(alone.first_cpu, 0);
  EXPECT_EQ(alone.cpus, (Cpus{0, 2, 4, 6, 1, 3, 5, 7})) << "threads that wait have the others";
  EXPECT_EQ(alone.description, "one node, one thread for each fast core");
  const Placement second = Choose(Rank(1, 2), host);
  EXPECT_EQ(second.num_threads, 2);
  EXPECT_EQ(second.first_cpu, 2) << "4 and 6";
  PlacementRequest all = Rank(0, 1);
  all.num_threads = 8;
  EXPECT_EQ(Choose(all, host).first_cpu, 0) << "who asks for more threads has the others, too";
  EXPECT_EQ(Choose(Rank(0, 6), host).num_threads, 1);
  PlacementRequest pinned = Rank(0, 1);
  pinned.first_cpu = 3;
  EXPECT_TRUE(Choose(pinned, host).cpus.empty()) << "the command line counts CPUs as they are";
}

TEST(Placement, CoresOfANodeAreDividedByItsRanks) {
  HostCpus host = TwoNodes();
  host.siblings = Range(8, 16);
  const Placement second = Choose(Rank(1, 2), host);
  EXPECT_EQ(second.cpus, (Cpus{4, 5, 6, 7, 12, 13, 14, 15}));
  EXPECT_EQ(second.num_threads, 4);
  const Placement alone = Choose(Rank(0, 1), host);
  EXPECT_EQ(alone.num_threads, 8);
  EXPECT_EQ(alone.cpus, (Cpus{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}));
  EXPECT_EQ(alone.memory_nodes, (Cpus{0, 1}));
}

// Six performance cores of two CPUs each, 0-11, eight efficiency cores, 12-19, and two of low power, 20-21.
HostCpus Hybrid() {
  HostCpus host = OneNode(22);
  host.siblings = {1, 3, 5, 7, 9, 11};
  for (int cpu = 0; cpu < 22; ++cpu) host.speeds[cpu] = cpu < 12 ? 1 : cpu < 20 ? 0.375 : 0.2;
  return host;
}

TEST(Placement, SlowCoresComputeWhereTheyAddAQuarter) {
  const Placement placement = Choose(Rank(0, 1), Hybrid());
  EXPECT_EQ(placement.num_threads, 14);
  EXPECT_EQ(placement.first_cpu, 0);
  EXPECT_EQ(placement.cpus,
            (Cpus{0, 2, 4, 6, 8, 10, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 1, 3, 5, 7, 9, 11}));
  std::vector<double> speeds(6, 1);
  speeds.resize(14, 0.375);
  EXPECT_EQ(placement.thread_speeds, speeds);
  EXPECT_TRUE(placement.spins);
  EXPECT_EQ(placement.description,
            "one node, one thread for each core: 6 of speed 1, 8 of 0.38 (+50%), none of 0.2 (+4%, less than "
            "25%)");
}

TEST(Placement, FewSlowCoresAreLeftOut) {
  HostCpus host = OneNode(10);
  for (int cpu = 0; cpu < 10; ++cpu) host.speeds[cpu] = cpu < 8 ? 1 : 0.375;
  const Placement placement = Choose(Rank(0, 1), host);
  EXPECT_EQ(placement.num_threads, 8);
  EXPECT_TRUE(placement.thread_speeds.empty()) << "those that compute are alike";
  EXPECT_EQ(placement.description,
            "one node, one thread for each core: 8 of speed 1, none of 0.38 (+9%, less than 25%)");
}

TEST(Placement, RanksHaveAsManyCoresOfEverySpeed) {
  const Placement first = Choose(Rank(0, 2), Hybrid()), second = Choose(Rank(1, 2), Hybrid());
  EXPECT_EQ(first.num_threads, 7);
  EXPECT_EQ(second.num_threads, 7);
  EXPECT_EQ(second.first_cpu, 7);
  EXPECT_EQ(Cpus(second.cpus.begin() + 7, second.cpus.begin() + 14), (Cpus{6, 8, 10, 16, 17, 18, 19}));
  EXPECT_EQ(first.cpus, second.cpus);
  EXPECT_EQ(first.thread_speeds, second.thread_speeds);
  EXPECT_EQ(first.thread_speeds, (std::vector<double>{1, 1, 1, 0.375, 0.375, 0.375, 0.375}));
  // Where there are more ranks than fast cores, no rank has a fast core.
  const Placement of_eight = Choose(Rank(7, 8), Hybrid());
  EXPECT_EQ(of_eight.num_threads, 1);
  EXPECT_EQ(of_eight.cpus[of_eight.first_cpu], 19);
}

TEST(Placement, WhereAllCoresAreSlowTheyCompute) {
  HostCpus host = Hybrid();
  host.allowed = Range(12, 20);
  host.num_cpus = 8;
  host.siblings = {};
  const Placement placement = Choose(Rank(0, 1), host);
  EXPECT_EQ(placement.num_threads, 8);
  EXPECT_TRUE(placement.thread_speeds.empty());
}

TEST(Placement, ThreadsThatAreToldHaveTheFastestCores) {
  PlacementRequest request = Rank(0, 1);
  request.num_threads = 4;
  EXPECT_TRUE(Choose(request, Hybrid()).thread_speeds.empty());
  request.num_threads = 15;  // a core of low power, too
  Placement placement = Choose(request, Hybrid());
  ASSERT_EQ(placement.thread_speeds.size(), 15u);
  EXPECT_EQ(placement.thread_speeds[5], 1);
  EXPECT_EQ(placement.thread_speeds[14], 0.2);
  EXPECT_EQ(placement.description, "one node") << "nothing was chosen";
  request.num_threads = 20;  // more than there are cores
  placement = Choose(request, Hybrid());
  EXPECT_EQ(placement.num_threads, 20);
  EXPECT_TRUE(placement.thread_speeds.empty()) << "two threads of a core have less than its speed each";
}

TEST(Placement, PinsOfTheCommandLineHaveTheSpeedsOfTheirCores) {
  const PlacementRequest request = {.num_threads = 3, .first_cpu = 10};
  HostCpus host = Hybrid();
  EXPECT_TRUE(Choose(request, host).thread_speeds.empty()) << "10 and 11 are one core";
  host.siblings = {};
  EXPECT_EQ(Choose(request, host).thread_speeds, (std::vector<double>{1, 1, 0.375}));
}

TEST(Placement, ThreadsWithoutPinsAreAlike) {
  PlacementRequest request = Rank(0, 1);
  request.pins = false;
  const Placement placement = Choose(request, Hybrid());
  EXPECT_EQ(placement.num_threads, 6);
  EXPECT_TRUE(placement.thread_speeds.empty());
  EXPECT_EQ(placement.description, "one node, one thread for each fast core");
}

TEST(Placement, AQuotaGivesFewerThreads) {
  HostCpus host = TwoNodes();
  host.num_cpus = 4;
  const Placement placement = Choose({.ranks_on_host = 2, .index_on_host = 1}, host);
  EXPECT_EQ(placement.num_threads, 2);
  EXPECT_EQ(placement.first_cpu, -1);
  EXPECT_TRUE(placement.spins);
  PlacementRequest told = {.num_threads = 6};
  EXPECT_EQ(Choose(told, host).num_threads, 6);
  EXPECT_FALSE(Choose(told, host).spins);
}

TEST(Placement, MoreThreadsThanCpusAreNeitherPinnedNorSpin) {
  PlacementRequest request = Rank(1, 2);
  request.num_threads = 9;
  const Placement placement = Choose(request, TwoNodes());
  EXPECT_EQ(placement.num_threads, 9);
  EXPECT_EQ(placement.first_cpu, -1);
  EXPECT_FALSE(placement.spins);
}

}  // namespace
}  // namespace somnus
