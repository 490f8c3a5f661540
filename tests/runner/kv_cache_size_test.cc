// The KV cache's size changes between steps.

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/runner/mini_engine.h"
#include "worker/runner/model_runner.h"

namespace somnus {
namespace {

using testing::HasSubstr;

std::vector<int32_t> Generate(RankGroup& group) {
  MiniOptions options{.max_running = 4, .max_step_tokens = 64, .num_blocks = 64};
  const auto result = RunAll(group, {MiniRequest{{5, 6, 7}, 8}}, options);
  EXPECT_TRUE(result.ok()) << result.status();
  return result.ok() ? (*result)[0].tokens : std::vector<int32_t>();
}

// A step with a single new sequence that has a single block.
v1::StepRequest NewSequenceOn(int32_t block) {
  v1::StepRequest step;
  *step.add_samplings() = GreedySampling();
  v1::NewSequence* sequence = step.add_new_sequences();
  for (const int32_t token : {5, 6, 7}) sequence->add_token_ids(token);
  sequence->set_num_prompt_tokens(3);
  sequence->add_block_ids(block);
  step.add_sequences()->set_num_tokens(3);
  return step;
}

// The computed tokens of a sequence stay, also where blocks behind the sequence's blocks come and go.
TEST(KvCacheSizeTest, ShrinksAndGrowsBetweenSteps) {
  auto loaded = RankGroup::Load("tests/data/tiny/llama-uneven", 1, SmallRunnerOptions(), 64);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  const std::unique_ptr<RankGroup> group = *std::move(loaded);
  const std::vector<int32_t> expected = Generate(*group);
  ModelRunner& runner = group->runner(0);
  const auto resident = [&] { return group->allocator(0).ResidentBytes().at("kv_cache"); };
  constexpr int32_t kBlocks = 4096, kBlock = 70;
  ASSERT_TRUE(runner.AllocateKvCache(kBlocks, 1000, /*defer_graphs=*/false).ok());
  EXPECT_GE(resident(), 1000 * runner.kv_block_bytes());
  EXPECT_LT(resident(), kBlocks * runner.kv_block_bytes() / 2);

  v1::StepRequest step = NewSequenceOn(kBlock);
  std::vector<int32_t> tokens;
  for (size_t i = 0; i < expected.size(); ++i) {
    const auto reply = group->Execute(step);
    ASSERT_TRUE(reply.ok()) << reply.status();
    tokens.push_back(reply->tokens(0).token_id());
    step.clear_new_sequences();
    step.mutable_sequences(0)->set_num_tokens(1);
    EXPECT_TRUE(absl::IsFailedPrecondition(runner.ResizeKvCache(kBlock)));
    const int32_t size = i % 2 == 0 ? kBlock + 1 : kBlocks;
    ASSERT_TRUE(runner.ResizeKvCache(size).ok());
    EXPECT_GE(resident(), size * runner.kv_block_bytes());
  }
  EXPECT_EQ(tokens, expected);

  ASSERT_TRUE(runner.BeginEpoch().ok());
  ASSERT_TRUE(runner.ResizeKvCache(kBlock).ok());
  EXPECT_LT(resident(), kBlocks * runner.kv_block_bytes() / 2);
  ASSERT_TRUE(group->SleepAndWake(RestoreMode::kBackup).ok());
  EXPECT_LT(resident(), kBlocks * runner.kv_block_bytes() / 2);
  EXPECT_EQ(Generate(*group), expected);
  const absl::Status refused = group->Execute(NewSequenceOn(kBlock)).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(refused.message(), HasSubstr("block 70 of 70"));
}

}  // namespace
}  // namespace somnus
