// The first node of a list, and lists that are wrong.

#include "base/slurm_nodelist.h"

#include <gtest/gtest.h>

#include <utility>

namespace somnus {
namespace {

TEST(SlurmNodelistTest, FirstNode) {
  const std::pair<std::string, std::string> cases[] = {
      {"n0", "n0"},
      {"n0,n1", "n0"},
      {"n[0-3,7],login1", "n0"},
      {"n[7,0-3]", "n7"},
      {"login1,n[0-3]", "login1"},
      {"node[008-011]", "node008"},
      {"rack[1-2]node[08-11]", "rack1node08"},
      {"gpu-a100-[3].cluster.example", "gpu-a100-3.cluster.example"},
      {"127.0.0.[1-2]", "127.0.0.1"},
      {"[5-6]", "5"},
      {"n[0-999999999]", "n0"},
      {"n[000000001-999999999,5],m[1-999999999]", "n000000001"},
  };
  for (const auto& [list, first] : cases) {
    const absl::StatusOr<std::string> node = FirstSlurmNode(list);
    ASSERT_TRUE(node.ok()) << list << ": " << node.status();
    EXPECT_EQ(*node, first) << list;
  }
}

TEST(SlurmNodelistTest, WrongLists) {
  for (const char* list : {"",       ",",        "n0,",    ",n0",    "n[",     "n[]",      "n[0",
                           "n[0-",   "n[0-]",    "n[-3]",  "n[3-1]", "n[0,]",  "n]0[",     "n[0]]",
                           "n[a-b]", "n[0-3;4]", "n 0",    "n0 ,n1", "n0\n",   "unix:/x",  "-n0",
                           "n[[0]]", "n0/n1",    "(null)", "n[0-3",  "n[0]-[", "n[0-1-2]", "n[0000000001]"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(FirstSlurmNode(list).status())) << list;
  }
}

TEST(SlurmNodelistTest, TheErrorSaysWhere) {
  EXPECT_EQ(FirstSlurmNode("n[0-3],m[2-1]").status().message(),
            "has a range that ends before it starts at byte 12");
}

TEST(SlurmNodelistTest, LengthsAreBounded) {
  EXPECT_FALSE(FirstSlurmNode(std::string(256, 'n')).ok());
  EXPECT_TRUE(FirstSlurmNode(std::string(255, 'n')).ok());
  std::string names = "n0";
  while (names.size() < (64 << 10)) names += ",n0";
  EXPECT_FALSE(FirstSlurmNode(names).ok());
  std::string brackets;
  for (int i = 0; i < 10000; ++i) brackets += "[1]";
  EXPECT_FALSE(FirstSlurmNode(brackets).ok());
}

}  // namespace
}  // namespace somnus
