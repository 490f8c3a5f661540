// Linked with a source of the product that was made wrong (mutations.bzl): the simulation finds the defect.
// SOMNUS_SCENARIO is kOneModel, kStages or kSeveralModels.

#include <gtest/gtest.h>

#include "tests/simulation/run_seeds.h"

namespace somnus::simulation {
namespace {

constexpr uint64_t kMaxSeeds = 10'000;

TEST(MutationTest, IsFound) {
  const Summary summary = RunSeeds(SOMNUS_SCENARIO, {1, kMaxSeeds}, /*verbose=*/false, /*max_failures=*/1);
  EXPECT_FALSE(summary.failures.empty()) << summary.Describe();
}

}  // namespace
}  // namespace somnus::simulation
