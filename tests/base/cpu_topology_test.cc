// Cores and speeds, from trees of files that a kernel would show.

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
  void WriteClock(int cpu, int khz) {
    Write(absl::StrCat("/system/cpu/cpu", cpu, "/cpufreq/cpuinfo_max_freq"), absl::StrCat(khz));
  }
  CpuTopology Read() { return ReadCpuTopology(root_.path()); }

  TempDir root_;
};

TEST_F(CpuTopologyTest, OneCpuOfEachCoreComputes) {
  Write("/system/cpu/online", "0-7");
  for (int cpu = 0; cpu < 8; ++cpu) WriteSiblings(cpu, absl::StrCat(cpu % 4, ",", cpu % 4 + 4));
  const CpuTopology topology = Read();
  EXPECT_EQ(topology.cores, (std::vector<Cpus>{{0, 4}, {1, 5}, {2, 6}, {3, 7}}));
  EXPECT_TRUE(topology.speeds.empty());
  EXPECT_EQ(SiblingCpus(topology, {0, 1, 2, 3, 4, 5, 6, 7}), (Cpus{4, 5, 6, 7}));
  EXPECT_EQ(SiblingCpus(topology, {1, 4, 5}), Cpus{5})
      << "of a core whose first CPU is not allowed, the next";
}

TEST_F(CpuTopologyTest, NeighboursMayBeSiblings) {
  Write("/system/cpu/online", "0-3");
  for (int cpu = 0; cpu < 4; ++cpu) WriteSiblings(cpu, absl::StrCat(cpu / 2 * 2, "-", cpu / 2 * 2 + 1));
  EXPECT_EQ(SiblingCpus(Read(), {0, 1, 2, 3}), (Cpus{1, 3}));
}

using Speeds = std::map<int, double>;

// Two CPUs of a performance core, and four efficiency cores.
TEST_F(CpuTopologyTest, EfficiencyCoresHaveHalfTheUnits) {
  Write("/system/cpu/online", "0-5");
  WriteSiblings(0, "0-1");
  WriteSiblings(1, "0-1");
  for (int cpu = 2; cpu < 6; ++cpu) WriteSiblings(cpu, absl::StrCat(cpu));
  Write("/cpu_atom/cpus", "2-5");
  EXPECT_EQ(Read().speeds, (Speeds{{0, 1}, {1, 1}, {2, 0.375}, {3, 0.375}, {4, 0.375}, {5, 0.375}}))
      << "without clocks, three quarters of the other's";
  for (int cpu = 0; cpu < 6; ++cpu) WriteClock(cpu, cpu < 2 ? 5000000 : 4000000);
  EXPECT_EQ(Read().speeds, (Speeds{{0, 1}, {1, 1}, {2, 0.4}, {3, 0.4}, {4, 0.4}, {5, 0.4}}));
  WriteClock(5, 2500000);
  EXPECT_EQ(Read().speeds, (Speeds{{0, 1}, {1, 1}, {2, 0.4}, {3, 0.4}, {4, 0.4}, {5, 0.25}}))
      << "one of a third kind";
  EXPECT_EQ(SiblingCpus(Read(), {0, 1, 2, 3, 4, 5}), Cpus{1});
}

TEST_F(CpuTopologyTest, CapacitiesAreSpeeds) {
  Write("/system/cpu/online", "0-3");
  const int capacities[] = {1024, 512, 500, 250};
  for (int cpu = 0; cpu < 4; ++cpu) {
    WriteSiblings(cpu, absl::StrCat(cpu));
    Write(absl::StrCat("/system/cpu/cpu", cpu, "/cpu_capacity"), absl::StrCat(capacities[cpu]));
  }
  const double middle = 500.0 / 1024;  // nearly equal cores have the speed of the slower
  EXPECT_EQ(Read().speeds, (Speeds{{0, 1}, {1, middle}, {2, middle}, {3, 250.0 / 1024}}));
}

// Some cores may have a greater clock than the rest, but not all at a time.
TEST_F(CpuTopologyTest, FavouredCoresAreAsFastAsOthers) {
  Write("/system/cpu/online", "0-3");
  const int clocks[] = {5700000, 5500000, 5100000, 5000000};
  for (int cpu = 0; cpu < 4; ++cpu) {
    WriteSiblings(cpu, absl::StrCat(cpu));
    WriteClock(cpu, clocks[cpu]);
  }
  EXPECT_TRUE(Read().speeds.empty());
  WriteClock(3, 3000000);  // a dense core
  EXPECT_EQ(Read().speeds, (Speeds{{0, 1}, {1, 1}, {2, 1}, {3, 3000000.0 / 5100000}}));
}

TEST_F(CpuTopologyTest, WithoutFilesEveryCpuComputes) {
  EXPECT_TRUE(Read().cores.empty());
  EXPECT_TRUE(Read().speeds.empty());
  EXPECT_TRUE(SiblingCpus(Read(), {0, 1}).empty());
  Write("/system/cpu/online", "0-1");
  WriteSiblings(0, "no list");
  WriteSiblings(1, "7");
  EXPECT_EQ(Read().cores, (std::vector<Cpus>{{0}, {1}}));
  EXPECT_TRUE(SiblingCpus(Read(), {0, 1}).empty());
}

}  // namespace
}  // namespace somnus
