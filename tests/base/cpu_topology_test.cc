// Cores and slow CPUs, from trees of files that a kernel would show.

#include "base/cpu_topology.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "tests/fakes/temp_dir.h"

namespace somnus {
namespace {

using Cpus = std::vector<int>;

class CpuTopologyTest : public testing::Test {
 protected:
  void Write(const std::string& path, const std::string& text) {
    const std::filesystem::path file = root_.path() + "/sys/devices" + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text << "\n";
  }
  void WriteSiblings(int cpu, const std::string& list) {
    Write(absl::StrCat("/system/cpu/cpu", cpu, "/topology/thread_siblings_list"), list);
  }
  CpuTopology Read() { return ReadCpuTopology(root_.path()); }

  TempDir root_;
};

TEST_F(CpuTopologyTest, OneCpuOfEachCoreComputes) {
  Write("/system/cpu/online", "0-7");
  for (int cpu = 0; cpu < 8; ++cpu) WriteSiblings(cpu, absl::StrCat(cpu % 4, ",", cpu % 4 + 4));
  const CpuTopology topology = Read();
  EXPECT_EQ(topology.cores, (std::vector<Cpus>{{0, 4}, {1, 5}, {2, 6}, {3, 7}}));
  EXPECT_TRUE(topology.slow.empty());
  EXPECT_EQ(SpareCpus(topology, {0, 1, 2, 3, 4, 5, 6, 7}), (Cpus{4, 5, 6, 7}));
  EXPECT_EQ(SpareCpus(topology, {1, 4, 5}), Cpus{5}) << "of a core whose first CPU is not allowed, the next";
}

TEST_F(CpuTopologyTest, NeighboursMayBeSiblings) {
  Write("/system/cpu/online", "0-3");
  for (int cpu = 0; cpu < 4; ++cpu) WriteSiblings(cpu, absl::StrCat(cpu / 2 * 2, "-", cpu / 2 * 2 + 1));
  EXPECT_EQ(SpareCpus(Read(), {0, 1, 2, 3}), (Cpus{1, 3}));
}

TEST_F(CpuTopologyTest, EfficiencyCoresDoNotCompute) {
  Write("/system/cpu/online", "0-5");
  WriteSiblings(0, "0-1");
  WriteSiblings(1, "0-1");
  for (int cpu = 2; cpu < 6; ++cpu) WriteSiblings(cpu, absl::StrCat(cpu));
  Write("/cpu_atom/cpus", "2-5");
  const CpuTopology topology = Read();
  EXPECT_EQ(topology.slow, (Cpus{2, 3, 4, 5}));
  EXPECT_EQ(SpareCpus(topology, {0, 1, 2, 3, 4, 5}), (Cpus{1, 2, 3, 4, 5}));
  EXPECT_TRUE(SpareCpus(topology, {2, 3}).empty()) << "where nothing else is allowed, they compute";
}

TEST_F(CpuTopologyTest, SmallCapacitiesAreSlow) {
  Write("/system/cpu/online", "0-3");
  const int capacities[] = {1024, 512, 500, 250};
  for (int cpu = 0; cpu < 4; ++cpu) {
    WriteSiblings(cpu, absl::StrCat(cpu));
    Write(absl::StrCat("/system/cpu/cpu", cpu, "/cpu_capacity"), absl::StrCat(capacities[cpu]));
  }
  EXPECT_EQ(Read().slow, (Cpus{2, 3}));
}

TEST_F(CpuTopologyTest, WithoutFilesEveryCpuComputes) {
  EXPECT_TRUE(Read().cores.empty());
  EXPECT_TRUE(SpareCpus(Read(), {0, 1}).empty());
  Write("/system/cpu/online", "0-1");
  WriteSiblings(0, "no list");
  WriteSiblings(1, "7");
  EXPECT_EQ(Read().cores, (std::vector<Cpus>{{0}, {1}}));
  EXPECT_TRUE(SpareCpus(Read(), {0, 1}).empty());
}

}  // namespace
}  // namespace somnus
