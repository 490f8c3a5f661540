// The simulation itself: the product holds its promises in every seed, and a seed is a run.

#include <gtest/gtest.h>

#include <cstdio>
#include <map>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "tests/simulation/run_seeds.h"

namespace somnus::simulation {
namespace {

constexpr uint64_t kSeedsOfOneTest = 2500;
constexpr uint64_t kReplayedSeeds = 150;

class SeedsTest : public testing::TestWithParam<uint64_t> {};

TEST_P(SeedsTest, AllInvariantsHold) {
  const Summary summary = RunSeeds({1 + GetParam() * kSeedsOfOneTest, kSeedsOfOneTest}, /*verbose=*/false);
  EXPECT_TRUE(summary.failures.empty()) << summary.Describe();
  EXPECT_EQ(summary.num_seeds, kSeedsOfOneTest);
  // The runs have tried something.
  EXPECT_GT(summary.num_requests, kSeedsOfOneTest);
  EXPECT_GT(summary.num_faults, kSeedsOfOneTest);
  // Where a coordinator dies, the next one takes over what would have been a recovery.
  EXPECT_GT(summary.num_recoveries + summary.num_restarts, kSeedsOfOneTest * 3 / 4);
  EXPECT_GT(summary.num_recoveries, kSeedsOfOneTest / 2);
  EXPECT_GT(summary.num_restarts, kSeedsOfOneTest / 4);
  EXPECT_GT(summary.num_adopted_asleep, kSeedsOfOneTest / 100);
  EXPECT_GT(summary.num_sleeps, kSeedsOfOneTest / 2);
  EXPECT_GT(summary.num_weights_changes, kSeedsOfOneTest / 4);
  EXPECT_GT(summary.num_resizes, kSeedsOfOneTest);
  EXPECT_GT(summary.num_pins, kSeedsOfOneTest / 2);
  EXPECT_GT(summary.num_swapped_blocks, kSeedsOfOneTest / 10);
  EXPECT_GT(summary.num_host_hit_tokens, 0u);
  // A newcomer to a group that sleeps spills nothing: its backup is the checkpoint.
  EXPECT_GT(summary.num_spill_writes, kSeedsOfOneTest / 6);
  EXPECT_GT(summary.num_disk_errors, kSeedsOfOneTest / 50);
  EXPECT_GT(summary.num_with_replicas, kSeedsOfOneTest / 5);
  EXPECT_GT(summary.num_moved, kSeedsOfOneTest / 5);
  EXPECT_GT(summary.num_rolls, kSeedsOfOneTest / 20);
}

INSTANTIATE_TEST_SUITE_P(TenThousand, SeedsTest, testing::Range<uint64_t>(0, 4));

// What simulate_cluster prints of the seeds from 1 on. `environment` is set for it.
std::string RunProgram(const std::string& environment) {
  const std::string command =
      absl::StrCat(environment, " tests/simulation/simulate_cluster --seed=1 --seeds=", kReplayedSeeds);
  std::FILE* pipe = popen(command.c_str(), "r");
  std::string output;
  char part[4096];
  while (std::fgets(part, sizeof(part), pipe) != nullptr) output += part;
  pclose(pipe);
  return output;
}

TEST(ReplayTest, ASeedIsOneRunWhateverRanBefore) {
  const Summary upwards = RunSeeds({1, kReplayedSeeds}, /*verbose=*/false);
  std::map<uint64_t, uint64_t> downwards;
  for (uint64_t seed = kReplayedSeeds; seed > 0; --seed)
    downwards.merge(RunSeeds({seed, 1}, /*verbose=*/false).traces);
  EXPECT_EQ(upwards.traces, downwards);
  std::set<uint64_t> different;
  for (const auto& [seed, trace] : upwards.traces) different.insert(trace);
  EXPECT_EQ(different.size(), kReplayedSeeds);  // none has crashed, either
}

// Addresses, and what memory holds that nobody has written, are others in each process.
TEST(ReplayTest, ASeedIsOneRunInEveryProcess) {
  const Summary summary = RunSeeds({1, kReplayedSeeds}, /*verbose=*/false);
  EXPECT_TRUE(summary.failures.empty()) << summary.Describe();
  const std::string here = summary.Describe() + "\n";
  EXPECT_EQ(RunProgram("MALLOC_PERTURB_=85"), here);
  EXPECT_EQ(RunProgram("MALLOC_PERTURB_=170 MALLOC_TOP_PAD_=1000000"), here);
}

}  // namespace
}  // namespace somnus::simulation
