#include "coordinator/block_manager/kv_plan.h"

#include <gtest/gtest.h>

#include "coordinator/block_manager/block_manager_options.h"

namespace somnus {
namespace {

KvPlanRequest Request() {
  KvPlanRequest request{.block_size = 16, .max_num_seqs = 4};
  request.max_model_len = 160;  // ten blocks
  return request;
}

TEST(KvPlanTest, TheTightestRankDecides) {
  const auto plan = PlanKvCache({{100, 3000}, {200, 4000}}, Request());
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->num_blocks, 20);
  EXPECT_EQ(plan->max_model_len, 160);
}

TEST(KvPlanTest, TheHostTierHasWhatFitsOnEveryRankAndNoMoreThanTheCacheHas) {
  EXPECT_EQ(PlanHostBlocks({100, 200}, 4000, 100), 20);
  EXPECT_EQ(PlanHostBlocks({100, 200}, 1 << 30, 99), 99);
  EXPECT_EQ(PlanHostBlocks({100, 0}, 4000, 100), 40) << "that rank has not loaded yet";
  EXPECT_EQ(PlanHostBlocks({100}, 99, 100), 0);
}

TEST(KvPlanTest, NoMoreThanTheSequencesCanUse) {
  EXPECT_EQ(PlanKvCache({{1, 1 << 30}}, Request())->num_blocks, 41);
}

TEST(KvPlanTest, AskedForBytesReplaceTheMeasuredOnes) {
  KvPlanRequest request = Request();
  request.kv_cache_memory_bytes = 1500;
  EXPECT_EQ(PlanKvCache({{100, 9000}}, request)->num_blocks, 15);
}

TEST(KvPlanTest, AHostsCacheHasASoftLimitAndAGpusHasNone) {
  constexpr int64_t kBlock = 1 << 20;
  KvPlanRequest request = Request();
  request.max_num_seqs = 4096;
  EXPECT_EQ(PlanKvCache({{kBlock, 4096 * kBlock, true}}, request)->num_blocks, 512);
  EXPECT_EQ(PlanKvCache({{kBlock, 4096 * kBlock, false}}, request)->num_blocks, 4096);
  EXPECT_EQ(PlanKvCache({{kBlock, 100 * kBlock, true}}, request)->num_blocks, 100) << "there is no more";
  // Ranks with larger blocks have fewer blocks, and the smallest number counts.
  EXPECT_EQ(
      PlanKvCache({{kBlock, 4096 * kBlock, true}, {2 * kBlock, 8192 * kBlock, true}}, request)->num_blocks,
      256);
}

TEST(KvPlanTest, TheSoftLimitGivesWayToOneSequenceAndToTheUser) {
  constexpr int64_t kBlock = 100 << 20;  // eleven are more than the limit
  KvPlanRequest request = Request();
  EXPECT_EQ(PlanKvCache({{kBlock, 90 * kBlock, true}}, request)->num_blocks, 11);
  request.kv_cache_memory_bytes = 15 * kBlock;
  EXPECT_EQ(PlanKvCache({{kBlock, 90 * kBlock, true}}, request)->num_blocks, 15);
}

// Where every layer has a window, a sequence needs the blocks of the window and of one step's tokens alone.
TEST(KvPlanTest, WithWindowsTheContextMayBeLongerThanTheCache) {
  KvPlanRequest request = Request();
  request.max_model_len = 160000;
  request.max_model_len_is_fixed = true;
  request.attention_reach = 40;
  request.max_step_tokens = 64;
  const int64_t at_once = WindowBlocks(40, 64, 16);
  EXPECT_EQ(at_once, 9);
  const auto plan = PlanKvCache({{100, 100 * (1 + at_once)}}, request);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->num_blocks, 10);
  EXPECT_EQ(plan->max_model_len, 160000);
  EXPECT_TRUE(absl::IsResourceExhausted(PlanKvCache({{100, 100 * at_once}}, request).status()));
  request.max_model_len_is_fixed = false;
  EXPECT_EQ(PlanKvCache({{100, 100 * at_once}}, request)->max_model_len, 8 * 16);
  EXPECT_EQ(LongestSequence(10, request), 160000)
      << "of workers whose cache an earlier coordinator has planned";
  EXPECT_EQ(LongestSequence(9, request), 8 * 16);
  request.attention_reach = 0;
  EXPECT_EQ(LongestSequence(10, request), 9 * 16);
}

TEST(KvPlanTest, ATooLongContextIsReducedOrAnError) {
  KvPlanRequest request = Request();
  const auto reduced = PlanKvCache({{100, 600}}, request);
  ASSERT_TRUE(reduced.ok());
  EXPECT_EQ(reduced->num_blocks, 6);
  EXPECT_EQ(reduced->max_model_len, 80);
  request.max_model_len_is_fixed = true;
  const absl::Status status = PlanKvCache({{100, 600}}, request).status();
  EXPECT_TRUE(absl::IsResourceExhausted(status));
  EXPECT_NE(status.message().find("--max-model-len"), absl::string_view::npos);
  EXPECT_TRUE(absl::IsResourceExhausted(PlanKvCache({{100, 150}}, Request()).status())) << "block 0 alone";
  EXPECT_TRUE(absl::IsInternal(PlanKvCache({{0, 100}}, Request()).status()));
}

}  // namespace
}  // namespace somnus
