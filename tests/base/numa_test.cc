// The topology from trees of files that a kernel would show, and pages that this kernel places.

#include "base/numa.h"

#include <gtest/gtest.h>
#include <string.h>
#include <sys/mman.h>

#include <filesystem>
#include <fstream>
#include <ios>

#include "tests/fakes/numa_maps.h"
#include "tests/fakes/temp_dir.h"

namespace somnus {
namespace {

using Cpus = std::vector<int>;

class NumaTest : public testing::Test {
 protected:
  void Write(const std::string& path, const std::string& text) {
    const std::filesystem::path file = root_.path() + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }

  TempDir root_;
};

TEST_F(NumaTest, ReadsTheNodesThatAreOnline) {
  EXPECT_TRUE(ReadNumaNodes(root_.path()).empty());
  Write("/sys/devices/system/node/online", "0-1,4\n");
  Write("/sys/devices/system/node/node0/cpulist", "0-3,8-11\n");
  Write("/sys/devices/system/node/node1/cpulist", "4-7\n");
  Write("/sys/devices/system/node/node4/cpulist", "\n");
  const std::vector<NumaNode> nodes = ReadNumaNodes(root_.path());
  ASSERT_EQ(nodes.size(), 3u);
  EXPECT_EQ(nodes[0].cpus, (Cpus{0, 1, 2, 3, 8, 9, 10, 11}));
  EXPECT_EQ(nodes[1].id, 1);
  EXPECT_EQ(nodes[1].cpus, (Cpus{4, 5, 6, 7}));
  EXPECT_EQ(nodes[2].id, 4);
  EXPECT_TRUE(nodes[2].cpus.empty()) << "it has memory alone";
}

TEST_F(NumaTest, ADeviceIsOnTheNodeOfItsSlot) {
  Write("/sys/bus/pci/devices/0000:3b:00.0/numa_node", "1\n");
  Write("/sys/bus/pci/devices/0000:04:00.0/numa_node", "-1\n");
  EXPECT_EQ(NumaNodeOfPciDevice("0000:3B:00.0", root_.path()), 1);
  EXPECT_EQ(NumaNodeOfPciDevice("0000:04:00.0", root_.path()), std::nullopt) << "the kernel does not know";
  EXPECT_EQ(NumaNodeOfPciDevice("0000:05:00.0", root_.path()), std::nullopt);
  EXPECT_EQ(NumaNodeOfPciDevice("", root_.path()), std::nullopt);
}

TEST(CpuList, IsReadAndWritten) {
  EXPECT_EQ(ParseCpuList("0-2,7\n"), (Cpus{0, 1, 2, 7}));
  EXPECT_EQ(ParseCpuList(""), Cpus());
  for (const char* wrong : {"a", "1-", "-1", "3-1", "1,,2", "0-99999999"})
    EXPECT_EQ(ParseCpuList(wrong), std::nullopt) << wrong;
  EXPECT_EQ(CpuListText({0, 1, 2, 7, 9, 10}), "0-2,7,9-10");
  EXPECT_EQ(CpuListText({}), "");
}

TEST(NumaOption, IsAutoOffOrANode) {
  EXPECT_EQ(ParseNumaOption("")->kind, NumaOption::Kind::kAuto);
  EXPECT_EQ(ParseNumaOption("auto")->kind, NumaOption::Kind::kAuto);
  EXPECT_EQ(ParseNumaOption("off")->kind, NumaOption::Kind::kOff);
  EXPECT_EQ(ParseNumaOption("3")->node, 3);
  for (const char* wrong : {"on", "-1", "1024", "0,1"}) EXPECT_FALSE(ParseNumaOption(wrong).ok()) << wrong;
}

constexpr int64_t kBytes = 4 << 20;

class PlacedPages : public testing::Test {
 protected:
  void SetUp() override {
    if (const absl::Status status = CheckPlacePages({0}); !status.ok()) GTEST_SKIP() << status;
    data_ = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(data_, MAP_FAILED);
  }
  void TearDown() override {
    if (data_ != nullptr) munmap(data_, kBytes);
  }

  void* data_ = nullptr;
};

TEST_F(PlacedPages, ComeFromTheNode) {
  ASSERT_TRUE(PlacePages(data_, kBytes, {0}).ok());
  memset(data_, 1, kBytes);
  EXPECT_EQ(PolicyAt(data_), "prefer:0");
}

TEST_F(PlacedPages, ComeFromSeveralNodesInTurns) {
  // Node 1023 is asked for, too, and this host does not have that node.
  ASSERT_TRUE(PlacePages(data_, kBytes, {0, 1023}).ok());
  memset(data_, 1, kBytes);
  EXPECT_EQ(PolicyAt(data_), "interleave:0");
}

TEST_F(PlacedPages, ANodeThatIsNotThereIsAnError) {
  EXPECT_FALSE(PlacePages(data_, kBytes, {1023}).ok());
  EXPECT_FALSE(CheckPlacePages({1023}).ok());
  EXPECT_FALSE(CheckPlacePages({5000}).ok());
  EXPECT_TRUE(PlacePages(data_, kBytes, {}).ok()) << "nothing is asked for";
  memset(data_, 1, kBytes);
}

}  // namespace
}  // namespace somnus
