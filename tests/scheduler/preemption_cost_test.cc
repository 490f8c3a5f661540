#include "coordinator/scheduler/preemption_cost.h"

#include <gtest/gtest.h>

namespace somnus {
namespace {

constexpr int64_t kBlockBytes = 4 << 20;  // 1 ms at the speed that is assumed

// Steps of 10 ms, and 0.1 ms for each token.
void RunSteps(PreemptionCost* cost, int num_steps) {
  for (int i = 0; i < num_steps; ++i) {
    cost->Observe(8, 0, /*only_decodes=*/true, 10e-3 + 8 * 0.1e-3);
    cost->Observe(500 + i % 7, 0, /*only_decodes=*/false, 10e-3 + (500 + i % 7) * 0.1e-3);
  }
}

TEST(PreemptionCostTest, WhatIsNotMeasuredIsRecomputed) {
  PreemptionCost cost(kBlockBytes);
  EXPECT_FALSE(SwapIsCheaper(cost.prices(), 1 << 20, 1));
  cost.Observe(8, 0, /*only_decodes=*/true, 10e-3);
  EXPECT_FALSE(SwapIsCheaper(cost.prices(), 1 << 20, 1)) << "decodes say nothing of prompts";
}

TEST(PreemptionCostTest, ATokenCostsWhatItAddsToAStep) {
  PreemptionCost cost(kBlockBytes);
  RunSteps(&cost, 100);
  EXPECT_NEAR(cost.prices().seconds_per_token, 0.1e-3, 1e-6);
  PreemptionCost prefills(kBlockBytes);
  prefills.Observe(500, 0, /*only_decodes=*/false, 50e-3);
  EXPECT_NEAR(prefills.prices().seconds_per_token, 0.1e-3, 1e-6) << "nothing else is known yet";
}

TEST(PreemptionCostTest, ABlockCostsWhatItAddsToAStep) {
  PreemptionCost cost(kBlockBytes);
  RunSteps(&cost, 100);
  EXPECT_NEAR(cost.prices().seconds_per_block, 1e-3, 0.1e-3) << "as assumed";
  for (int i = 0; i < 20; ++i) {
    cost.Observe(8, 100, /*only_decodes=*/true, 10.8e-3 + 100 * 20e-6);
    cost.Observe(208, 50, /*only_decodes=*/false, 30.8e-3 + 50 * 20e-6);
  }
  EXPECT_NEAR(cost.prices().seconds_per_block, 20e-6, 2e-6);
  EXPECT_NEAR(cost.prices().seconds_per_token, 0.1e-3, 1e-6) << "steps with swaps do not count for tokens";
}

TEST(PreemptionCostTest, ASlowCopyIsForgottenWhereNoneFollows) {
  PreemptionCost cost(kBlockBytes);
  RunSteps(&cost, 100);
  cost.Observe(8, 10, /*only_decodes=*/true, 1);
  EXPECT_FALSE(SwapIsCheaper(cost.prices(), 1600, 10));
  RunSteps(&cost, 4000);
  EXPECT_NEAR(cost.prices().seconds_per_block, 1e-3, 0.1e-3);
  EXPECT_TRUE(SwapIsCheaper(cost.prices(), 1600, 10));
}

TEST(PreemptionCostTest, TheCheaperWayIsChosen) {
  const PreemptionPrices prices = {.seconds_per_token = 100e-6, .seconds_per_block = 700e-6};
  EXPECT_TRUE(SwapIsCheaper(prices, 1600, 100)) << "140 ms for both ways, 160 ms to compute";
  EXPECT_FALSE(SwapIsCheaper(prices, 1300, 100));
  EXPECT_FALSE(SwapIsCheaper(prices, 1, 1)) << "a block that is almost empty";
}

TEST(PreemptionCostTest, OldSpeedsAreForgottenAndNothingIsNegative) {
  PreemptionCost cost(kBlockBytes);
  RunSteps(&cost, 100);
  for (int i = 0; i < 200; ++i) cost.Observe(500, 0, /*only_decodes=*/false, 10.8e-3 + 492 * 0.5e-3);
  EXPECT_NEAR(cost.prices().seconds_per_token, 0.5e-3, 5e-6);
  for (int i = 0; i < 200; ++i) cost.Observe(500, 10, /*only_decodes=*/false, 1e-3);
  EXPECT_GE(cost.prices().seconds_per_block, 0);
  EXPECT_LT(cost.prices().seconds_per_block, 1e-6);
  for (int i = 0; i < 200; ++i) cost.Observe(500, 0, /*only_decodes=*/false, 1e-3);
  EXPECT_EQ(cost.prices().seconds_per_token, 0);
  cost.Observe(500, 0, /*only_decodes=*/false, 0);
  cost.Observe(0, 0, /*only_decodes=*/false, 1);
  EXPECT_EQ(cost.prices().seconds_per_token, 0);
}

}  // namespace
}  // namespace somnus
