// The simulation itself: the product holds all promises in every seed, and a seed is a run.

#include <gtest/gtest.h>

#include <cstdio>
#include <map>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "tests/simulation/run_seeds.h"

namespace somnus::simulation {
namespace {

constexpr int64_t kSeedsOfOneTest = 2500;
constexpr int64_t kSeedsOfSeveralModels = 300;
// Beyond the first seeds: each found a fault, of the product or of the simulation.
constexpr uint64_t kFoundSeedsOfSeveralModels[] = {482, 1260, 1824, 1959, 2477, 2598, 4920};
constexpr int64_t kSeedsOfStages = 300;
constexpr uint64_t kOtherReplayedSeeds = 50;  // of stages, and of several models
constexpr uint64_t kReplayedSeeds = 150;

class SeedsTest : public testing::TestWithParam<uint64_t> {};

TEST_P(SeedsTest, AllInvariantsHold) {
  const SeedRange seeds = {1 + GetParam() * kSeedsOfOneTest, kSeedsOfOneTest};
  const Summary summary = RunSeeds(kOneModel, seeds, /*verbose=*/false);
  EXPECT_TRUE(summary.failures.empty()) << summary.Describe();
  EXPECT_EQ(static_cast<int64_t>(summary.num_seeds), kSeedsOfOneTest);
  // The runs have tried something.
  EXPECT_GT(summary.counts.at("requests"), kSeedsOfOneTest);
  EXPECT_GT(summary.counts.at("faults"), kSeedsOfOneTest);
  // Where a coordinator dies, the next coordinator takes over instead of a recovery.
  EXPECT_GT(summary.counts.at("recoveries") + summary.counts.at("restarts of the coordinator"),
            kSeedsOfOneTest * 3 / 4);
  EXPECT_GT(summary.counts.at("recoveries"), kSeedsOfOneTest / 2);
  EXPECT_GT(summary.counts.at("restarts of the coordinator"), kSeedsOfOneTest / 4);
  EXPECT_GT(summary.counts.at("groups adopted asleep"), kSeedsOfOneTest / 100);
  EXPECT_GT(summary.counts.at("sleeps"), kSeedsOfOneTest / 2);
  EXPECT_GT(summary.counts.at("changes of weights"), kSeedsOfOneTest / 4);
  EXPECT_GT(summary.counts.at("resizes"), kSeedsOfOneTest);
  EXPECT_GT(summary.counts.at("pins"), kSeedsOfOneTest / 2);
  EXPECT_GT(summary.counts.at("blocks swapped in"), kSeedsOfOneTest / 10);
  EXPECT_GT(summary.counts.at("cached tokens from host memory"), 0);
  // A newcomer to a group that sleeps spills nothing: the newcomer's backup is the checkpoint.
  EXPECT_GT(summary.counts.at("writes to the disk"), kSeedsOfOneTest / 6);
  EXPECT_GT(summary.counts.at("errors of the disk"), kSeedsOfOneTest / 50);
  EXPECT_GT(summary.counts.at("clusters with replicas"), kSeedsOfOneTest / 5);
  EXPECT_GT(summary.counts.at("moved requests"), kSeedsOfOneTest / 5);
  EXPECT_GT(summary.counts.at("rolls"), kSeedsOfOneTest / 20);
}

INSTANTIATE_TEST_SUITE_P(TenThousand, SeedsTest, testing::Range<uint64_t>(0, 4));

TEST(StagesTest, AllInvariantsHold) {
  const Summary summary = RunSeeds(kStages, {1, kSeedsOfStages}, /*verbose=*/false);
  EXPECT_TRUE(summary.failures.empty()) << summary.Describe();
  EXPECT_EQ(static_cast<int64_t>(summary.num_seeds), kSeedsOfStages);
  // The runs have tried something, and the stages have computed different steps at once.
  EXPECT_GT(summary.counts.at("steps beside another stage's"), 10 * kSeedsOfStages);
  for (const char* tried : {"requests", "faults", "resizes"})
    EXPECT_GT(summary.counts.at(tried), kSeedsOfStages) << tried;
  for (const char* tried : {"recoveries", "sleeps", "changes of weights"})
    EXPECT_GT(summary.counts.at(tried), kSeedsOfStages / 4) << tried;
  for (const char* tried : {"restarts of the coordinator", "clusters with replicas", "blocks swapped in"})
    EXPECT_GT(summary.counts.at(tried), kSeedsOfStages / 10) << tried;
}

TEST(SeveralModelsTest, AllInvariantsHold) {
  const Summary summary = RunSeeds(kSeveralModels, {1, kSeedsOfSeveralModels}, /*verbose=*/false);
  EXPECT_TRUE(summary.failures.empty()) << summary.Describe();
  EXPECT_EQ(static_cast<int64_t>(summary.num_seeds), kSeedsOfSeveralModels);
  // The runs have tried something.
  for (const char* tried : {"requests", "faults", "sleeps", "changes of weights", "decisions to wake",
                            "decisions to sleep_if_idle", "resizes"})
    EXPECT_GT(summary.counts.at(tried), kSeedsOfSeveralModels / 2) << tried;
  for (const char* tried :
       {"recoveries", "decisions to drain", "decisions to preempt", "decisions to prefetch"})
    EXPECT_GT(summary.counts.at(tried), kSeedsOfSeveralModels / 20) << tried;
  EXPECT_GT(summary.counts.at("decisions to release"), 0);
}

TEST(SeveralModelsTest, SeedsThatFoundFaultsHold) {
  for (const uint64_t seed : kFoundSeedsOfSeveralModels) {
    const Summary summary = RunSeeds(kSeveralModels, {seed, 1}, /*verbose=*/false);
    EXPECT_TRUE(summary.failures.empty()) << summary.Describe();
  }
}

// The output of simulate_cluster for the seeds from 1 on. `environment` is set for the program.
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
  const Summary upwards = RunSeeds(kOneModel, {1, kReplayedSeeds}, /*verbose=*/false);
  std::map<uint64_t, uint64_t> downwards;
  for (uint64_t seed = kReplayedSeeds; seed > 0; --seed)
    downwards.merge(RunSeeds(kOneModel, {seed, 1}, /*verbose=*/false).traces);
  EXPECT_EQ(upwards.traces, downwards);
  std::set<uint64_t> different;
  for (const auto& [seed, trace] : upwards.traces) different.insert(trace);
  EXPECT_EQ(different.size(), kReplayedSeeds);  // none has crashed, either
}

TEST(ReplayTest, ASeedOfSeveralModelsOrStagesIsOneRun) {
  for (const Scenario& scenario : {kSeveralModels, kStages}) {
    const Summary first = RunSeeds(scenario, {1, kOtherReplayedSeeds}, /*verbose=*/false);
    const Summary second = RunSeeds(scenario, {1, kOtherReplayedSeeds}, /*verbose=*/false);
    EXPECT_EQ(first.traces, second.traces) << scenario.flag;
    EXPECT_EQ(first.counts, second.counts) << scenario.flag;
  }
}

// Addresses, and the contents of memory that nobody has written, differ from process to process.
TEST(ReplayTest, ASeedIsOneRunInEveryProcess) {
  const Summary summary = RunSeeds(kOneModel, {1, kReplayedSeeds}, /*verbose=*/false);
  EXPECT_TRUE(summary.failures.empty()) << summary.Describe();
  const std::string here = summary.Describe() + "\n";
  EXPECT_EQ(RunProgram("MALLOC_PERTURB_=85"), here);
  EXPECT_EQ(RunProgram("MALLOC_PERTURB_=170 MALLOC_TOP_PAD_=1000000"), here);
}

}  // namespace
}  // namespace somnus::simulation
