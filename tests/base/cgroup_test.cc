// Limits of control groups, read from trees of files that a kernel would show.

#include "base/cgroup.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tests/fakes/temp_dir.h"

namespace somnus {
namespace {

class CgroupTest : public testing::Test {
 protected:
  void Write(const std::string& path, const std::string& text) {
    const std::filesystem::path file = root_.path() + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  double Quota() { return CpuQuota(root_.path()); }
  std::vector<std::string> Paths(const std::string& controller) {
    std::vector<std::string> paths;
    for (const CgroupDirectory& directory : CgroupsOf(controller, root_.path()))
      paths.push_back(directory.path.substr(root_.path().size()));
    return paths;
  }

  TempDir root_;
};

TEST_F(CgroupTest, WithoutGroupsThereIsNoQuota) { EXPECT_EQ(Quota(), 0); }

TEST_F(CgroupTest, TheLeastQuotaOfAGroupAndThoseAboveItHolds) {
  Write("/proc/self/cgroup", "0::/pods/one\n");
  EXPECT_EQ(Paths("cpu"),
            (std::vector<std::string>{"/sys/fs/cgroup", "/sys/fs/cgroup/pods/one", "/sys/fs/cgroup/pods"}));
  EXPECT_EQ(Quota(), 0) << "no file says anything";
  Write("/sys/fs/cgroup/pods/one/cpu.max", "max 100000\n");
  EXPECT_EQ(Quota(), 0);
  Write("/sys/fs/cgroup/pods/cpu.max", "800000 100000\n");
  EXPECT_EQ(Quota(), 8);
  Write("/sys/fs/cgroup/pods/one/cpu.max", "250000 100000\n");
  EXPECT_EQ(Quota(), 2.5);
}

TEST_F(CgroupTest, TheFirstVersionSaysItInTwoFiles) {
  Write("/proc/self/cgroup", "5:memory:/m\n3:cpu,cpuacct:/c\n0::/\n");
  EXPECT_EQ(Paths("memory"),
            (std::vector<std::string>{"/sys/fs/cgroup/memory", "/sys/fs/cgroup/memory/m", "/sys/fs/cgroup"}));
  Write("/sys/fs/cgroup/cpu/c/cpu.cfs_quota_us", "-1\n");
  Write("/sys/fs/cgroup/cpu/c/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(Quota(), 0);
  Write("/sys/fs/cgroup/cpu/c/cpu.cfs_quota_us", "50000\n");
  EXPECT_EQ(Quota(), 0.5);
}

TEST_F(CgroupTest, WhatCannotBeReadIsNoQuota) {
  Write("/proc/self/cgroup", "0::/\n");
  for (const char* text : {"", "one two\n", "100000\n", "100000 0\n"}) {
    Write("/sys/fs/cgroup/cpu.max", text);
    EXPECT_EQ(Quota(), 0) << text;
  }
}

}  // namespace
}  // namespace somnus
