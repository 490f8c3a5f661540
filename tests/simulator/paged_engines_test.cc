// The engines that run over the coordinator's own Scheduler and BlockManager.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/simulator/engine_steps.h"
#include "tools/simulator/paged_engine.h"

namespace somnus {
namespace {

EngineOptions Options(int64_t kv_slots) {
  EngineOptions options;
  options.kv_slots = kv_slots;
  options.block_size = 4;
  options.max_num_seqs = 8;
  options.max_num_batched_tokens = 64;
  options.max_model_len = 256;
  return options;
}

TEST(PagedEngineTest, ABlocksEndIsAllThatIsLost) {
  const auto engine = MakePagedEngine(ToSchedulerOptions(Options(64)));
  ASSERT_TRUE(engine->Add(Request(7, 10, 3)).ok());
  StepResult result;
  ASSERT_EQ(engine->BeginStep()->prefill_tokens, 10);
  EXPECT_EQ(engine->kv_use().live, 10);
  EXPECT_EQ(engine->kv_use().rounding, 2);
  EXPECT_EQ(engine->kv_use().total, 64);
  engine->EndStep(&result);
  EXPECT_EQ(result.first_tokens, std::vector<int64_t>{7});
  const StepLoad decode = Step(engine.get(), &result);
  EXPECT_EQ(decode.decode_sequences, 1);
  EXPECT_EQ(decode.kv_tokens, 11);
  Step(engine.get(), &result);
  EXPECT_EQ(result.ended, std::vector<int64_t>{7});
  EXPECT_FALSE(engine->BeginStep().has_value());
}

TEST(PagedEngineTest, AGroupsPrefixIsHeldOnce) {
  const auto engine = MakePagedEngine(ToSchedulerOptions(Options(64)));
  LoadRequest request = Request(0, 10, 5);
  request.prefix_group = 1;
  request.prefix = 8;
  ASSERT_TRUE(engine->Add(request).ok());
  StepResult result;
  Step(engine.get(), &result);
  request.id = 1;
  ASSERT_TRUE(engine->Add(request).ok());
  const std::optional<StepLoad> load = engine->BeginStep();
  EXPECT_EQ(load->prefill_tokens, 2);  // 8 are in the cache
  EXPECT_EQ(engine->kv_use().held_slots, 16);
  EXPECT_EQ(engine->kv_use().unshared_slots, 24);
  EXPECT_EQ(engine->kv_use().live, 8 + 3 + 2);
  engine->EndStep(&result);
}

TEST(PagedEngineTest, ChoicesForkTheFirstOne) {
  const auto engine = MakePagedEngine(ToSchedulerOptions(Options(64)), {.n = 3});
  ASSERT_TRUE(engine->Add(Request(0, 10, 3)).ok());
  StepResult result;
  EXPECT_EQ(Step(engine.get(), &result).prefill_tokens, 10);  // once for all three
  EXPECT_EQ(result.first_tokens, std::vector<int64_t>{0});
  ASSERT_EQ(engine->BeginStep()->decode_sequences, 3);
  EXPECT_EQ(engine->num_running(), 1);
  EXPECT_EQ(engine->kv_use().unshared_slots, 3 * 12);
  EXPECT_EQ(engine->kv_use().held_slots, 8 + 3 * 4);  // two blocks for all, and each choice's third block
  EXPECT_EQ(engine->kv_use().live, 8 + 3 * 3);
  engine->EndStep(&result);
  EXPECT_TRUE(result.ended.empty());
  Step(engine.get(), &result);
  EXPECT_EQ(result.ended, std::vector<int64_t>{0});
}

TEST(PagedEngineTest, PreemptedRequestsEndToo) {
  const auto engine = MakePagedEngine(ToSchedulerOptions(Options(64)));
  for (int64_t id = 0; id < 4; ++id) ASSERT_TRUE(engine->Add(Request(id, 10, 30)).ok());
  StepResult result;
  while (result.ended.size() < 4) {
    const std::optional<StepLoad> load = engine->BeginStep();
    ASSERT_TRUE(load.has_value());
    const KvUse use = engine->kv_use();
    EXPECT_GE(use.rounding, 0);
    EXPECT_EQ(use.held_slots, use.unshared_slots);
    engine->EndStep(&result);
  }
  EXPECT_GT(engine->num_preemptions(), 0);
  EXPECT_EQ(result.first_tokens, (std::vector<int64_t>{0, 1, 2, 3}));
  EXPECT_FALSE(engine->Add(Request(4, 10, 300)).ok());
}

TEST(PagedEngineTest, WhatIsSwappedIsNotComputedAgain) {
  EngineOptions options = Options(64);
  options.preemption = PreemptionMode::kSwap;
  options.swap_slots = 512;
  const auto engine = MakePagedEngine(ToSchedulerOptions(options));
  for (int64_t id = 0; id < 4; ++id) ASSERT_TRUE(engine->Add(Request(id, 10, 30)).ok());
  StepResult result;
  StepLoad sum;
  while (result.ended.size() < 4) {
    const StepLoad load = Step(engine.get(), &result);
    sum.prefill_tokens += load.prefill_tokens;
    sum.decode_sequences += load.decode_sequences;
    sum.swapped_tokens += load.swapped_tokens;
  }
  EXPECT_EQ(sum.prefill_tokens, 4 * 10);
  EXPECT_EQ(sum.decode_sequences, 4 * 29);
  EXPECT_GT(sum.swapped_tokens, 0);
  EXPECT_GT(engine->num_swap_preemptions(), 0);
  EXPECT_EQ(engine->num_swap_preemptions(), engine->num_preemptions());
}

TEST(PagedEngineTest, ABeamSearchComputesItsPromptOnceAndEndsAsAWhole) {
  const auto engine = MakePagedEngine(ToSchedulerOptions(Options(64)), {.beams = 3});
  ASSERT_TRUE(engine->Add(Request(0, 10, 4)).ok());
  StepResult result;
  EXPECT_EQ(Step(engine.get(), &result).prefill_tokens, 10);
  EXPECT_EQ(result.first_tokens, std::vector<int64_t>{0});
  ASSERT_EQ(engine->BeginStep()->decode_sequences, 3);
  EXPECT_EQ(engine->num_running(), 1);
  const KvUse use = engine->kv_use();
  EXPECT_EQ(use.unshared_slots, 3 * 12);
  EXPECT_EQ(use.held_slots, 8 + 3 * 4);  // two blocks for all, and each beam's copied third block
  EXPECT_EQ(use.live, 8 + 3 * 3);
  engine->EndStep(&result);
  Step(engine.get(), &result);
  EXPECT_TRUE(result.ended.empty());
  Step(engine.get(), &result);
  EXPECT_EQ(result.ended, std::vector<int64_t>{0});
  EXPECT_EQ(engine->kv_use().held_slots, 0);
}

TEST(PagedEngineTest, BeamsArePreemptedWholeAndEnd) {
  for (const PreemptionMode preemption : {PreemptionMode::kRecompute, PreemptionMode::kSwap}) {
    EngineOptions options = Options(128);
    options.preemption = preemption;
    options.swap_slots = 512;
    const auto engine = MakePagedEngine(ToSchedulerOptions(options), {.beams = 2});
    for (int64_t id = 0; id < 4; ++id) ASSERT_TRUE(engine->Add(Request(id, 10, 40)).ok());
    StepResult result;
    int num_ahead = 0;
    while (result.ended.size() < 4) {
      const std::optional<StepLoad> load = engine->BeginStep();
      ASSERT_TRUE(load.has_value());
      const KvUse use = engine->kv_use();
      EXPECT_LE(use.held_slots, 128);
      EXPECT_GE(use.live, 0);
      // A group that comes back has the blocks of all beams a step before the workers have the blocks.
      num_ahead += use.held_slots > use.unshared_slots;
      EXPECT_GE(use.rounding, 0);
      engine->EndStep(&result);
    }
    EXPECT_GT(engine->num_preemptions(), 0);
    EXPECT_LE(num_ahead, engine->num_preemptions());
    EXPECT_EQ(engine->num_swap_preemptions() > 0, preemption == PreemptionMode::kSwap);
    EXPECT_EQ(result.first_tokens.size(), 4u);
    EXPECT_EQ(engine->kv_use().held_slots, 0);
    EXPECT_FALSE(engine->BeginStep().has_value());
  }
}

TEST(PagedEngineTest, BeamsShareTheirPast) {
  const auto engine = MakePagedEngine(ToSchedulerOptions(Options(4096)), {.beams = 4});
  ASSERT_TRUE(engine->Add(Request(0, 8, 200)).ok());
  StepResult result;
  for (int step = 0; step < 150; ++step) Step(engine.get(), &result);
  ASSERT_TRUE(engine->BeginStep().has_value());
  const KvUse use = engine->kv_use();
  EXPECT_LT(use.held_slots, use.unshared_slots / 2);
  EXPECT_GE(use.held_slots, use.unshared_slots / 4);
}

TEST(PagedEngineTest, BeamsThatCanNeverFitAreRefused) {
  const auto engine = MakePagedEngine(ToSchedulerOptions(Options(64)), {.beams = 4});
  // Two of the 16 blocks are for the prompt, and every beam takes as many blocks as the outputs fill.
  EXPECT_FALSE(engine->Add(Request(0, 8, 13)).ok());
  EXPECT_TRUE(engine->Add(Request(0, 8, 12)).ok());
}

TEST(BeamCandidatesTest, ProbabilitiesFallGeometricallyFromTwoThirds) {
  BeamCandidates candidates(1);
  double sum_of_best = 0;
  constexpr int kDraws = 20000;
  for (int draw = 0; draw < kDraws; ++draw) {
    const v1::StepLogprobs logprobs = candidates.Draw(4);
    ASSERT_EQ(logprobs.token_ids_size(), 1 + 4);
    ASSERT_EQ(logprobs.logprobs_size(), 1 + 4);
    const double ratio = logprobs.logprobs(2) - logprobs.logprobs(1);
    EXPECT_LT(ratio, 0);
    EXPECT_NEAR(logprobs.logprobs(4) - logprobs.logprobs(3), ratio, 1e-4);
    EXPECT_EQ(logprobs.token_ids(4), 3);
    sum_of_best += std::exp(logprobs.logprobs(1));
  }
  EXPECT_NEAR(sum_of_best / kDraws, 2.0 / 3, 0.01);
}

}  // namespace
}  // namespace somnus
