// Choices of one prompt: the prompt is computed once, even where other requests come between, and every
// choice has its own answer.

#include <gtest/gtest.h>

#include "tests/scheduler/scheduler_harness.h"

namespace somnus {
namespace {

// `count` choices of one prompt: "c0" is the first, and the rest fork "c0".
std::vector<EngineRequest> Choices(int32_t count, int32_t prompt_len, int32_t max_tokens) {
  std::vector<EngineRequest> choices(static_cast<size_t>(count), MakeRequest("c0", prompt_len, max_tokens));
  for (int32_t i = 1; i < count; ++i) {
    choices[i].id = "c" + std::to_string(i);
    choices[i].fork_of = "c0";
    choices[i].seed = static_cast<uint64_t>(i);
  }
  return choices;
}

void AddAll(const std::vector<EngineRequest>& requests, Harness* harness) {
  for (const EngineRequest& request : requests) harness->Add(request);
}

void ExpectExact(const std::vector<EngineRequest>& requests, const Harness& harness) {
  for (const EngineRequest& request : requests)
    EXPECT_EQ(harness.answers.at(request.id).tokens, Reference(request)) << request.id;
  EXPECT_EQ(harness.scheduler.blocks().pool().num_used(), 0);
}

TEST(ForksTest, APromptIsComputedOnce) {
  Harness harness(SmallOptions());
  const std::vector<EngineRequest> choices = Choices(4, 10, 6);
  AddAll(choices, &harness);
  ASSERT_TRUE(harness.Step());
  EXPECT_EQ(harness.worker.num_computed_tokens(), 10);
  ASSERT_EQ(harness.steps[0].new_sequences_size(), 1);
  ASSERT_EQ(harness.steps[0].forks_size(), 3);
  for (int i = 0; i < 3; ++i) {
    const v1::SequenceFork& fork = harness.steps[0].forks(i);
    EXPECT_EQ(fork.source_slot(), harness.steps[0].new_sequences(0).slot());
    EXPECT_EQ(fork.seed(), static_cast<uint64_t>(i + 1));
    ASSERT_EQ(fork.block_ids_size(), 3);
    EXPECT_EQ(fork.block_ids(0), harness.steps[0].new_sequences(0).block_ids(0));
    EXPECT_NE(fork.block_ids(2), harness.steps[0].new_sequences(0).block_ids(2));
  }
  EXPECT_EQ(harness.scheduler.blocks().pool().num_used(), 3 + 3);
  harness.RunToEnd();
  EXPECT_EQ(harness.worker.num_computed_tokens(), 10 + 4 * 5);
  EXPECT_EQ(harness.scheduler.stats().num_forks, 3);
  EXPECT_EQ(harness.scheduler.stats().forked_prompt_tokens, harness.scheduler.stats().prompt_tokens / 4 * 3);
  ExpectExact(choices, harness);
}

TEST(ForksTest, OnlyAPartlyFilledBlockIsCopied) {
  for (const int32_t prompt_len : {8, 10}) {
    Harness harness(SmallOptions());
    AddAll(Choices(4, prompt_len, 6), &harness);
    harness.RunToEnd();
    int num_copies = 0;
    for (const v1::StepRequest& step : harness.steps) num_copies += step.copies_size();
    EXPECT_EQ(num_copies, prompt_len % 4 == 0 ? 0 : 3) << prompt_len;
    ExpectExact(Choices(4, prompt_len, 6), harness);
  }
}

std::vector<EngineRequest> Others(int count) {
  std::vector<EngineRequest> others;
  for (int i = 0; i < count; ++i) others.push_back(MakeRequest("o" + std::to_string(i), 3, 12, 500 + 10 * i));
  return others;
}

TEST(ForksTest, SlotsAreKeptInTheStepThatForks) {
  SchedulerOptions options = SmallOptions();
  options.max_num_seqs = 4;
  Harness harness(options, /*depth=*/1);
  const std::vector<EngineRequest> choices = Choices(3, 6, 4), others = Others(3);
  AddAll(choices, &harness);
  AddAll(others, &harness);
  ASSERT_TRUE(harness.Step());
  EXPECT_EQ(harness.steps[0].forks_size(), 2);
  EXPECT_EQ(harness.steps[0].new_sequences_size(), 2);
  harness.RunToEnd();
  ExpectExact(choices, harness);
  ExpectExact(others, harness);
}

// A long prompt with many choices keeps nobody waiting.
TEST(ForksTest, OthersGoAheadWhileALongPromptIsComputed) {
  SchedulerOptions options = SmallOptions();
  options.max_num_seqs = 4;
  Harness harness(options, /*depth=*/1);
  const std::vector<EngineRequest> choices = Choices(3, 50, 4), others = Others(2);
  AddAll(choices, &harness);
  AddAll(others, &harness);
  harness.RunToEnd();
  ExpectExact(choices, harness);
  ExpectExact(others, harness);
  for (const EngineRequest& other : others)
    EXPECT_LT(harness.answers.at(other.id).first_token_step, harness.answers.at("c0").first_token_step);
  EXPECT_EQ(harness.scheduler.stats().num_forks, 1);
  const int64_t rest_of_the_prompt = 50 % 4;
  EXPECT_EQ(harness.worker.num_computed_tokens(), 50 + rest_of_the_prompt + 3 * 3 + 2 * (3 + 11));
}

TEST(ForksTest, AChoiceWithoutASlotFindsThePromptInTheCache) {
  SchedulerOptions options = SmallOptions();
  options.max_num_seqs = 2;
  Harness harness(options);
  const std::vector<EngineRequest> choices = Choices(4, 10, 5);
  AddAll(choices, &harness);
  harness.RunToEnd();
  ExpectExact(choices, harness);
  EXPECT_EQ(harness.scheduler.stats().num_forks, 1);
  EXPECT_EQ(harness.worker.num_computed_tokens(), 10 + 2 * 2 + 4 * 4);
}

TEST(ForksTest, AChoiceWithoutABlockWaits) {
  Harness harness(SmallOptions(/*num_blocks=*/1 + 5));
  const std::vector<EngineRequest> choices = Choices(4, 10, 8);
  AddAll(choices, &harness);
  ASSERT_TRUE(harness.Step());
  EXPECT_EQ(harness.steps[0].forks_size(), 2);
  harness.RunToEnd();
  ExpectExact(choices, harness);
}

TEST(ForksTest, WithoutTheFirstChoiceTheOthersComputeTheirPrompt) {
  Harness harness(SmallOptions());
  const std::vector<EngineRequest> choices = Choices(3, 40, 5);
  AddAll(choices, &harness);
  ASSERT_TRUE(harness.Step());
  ASSERT_NE(harness.scheduler.Abort("c0"), nullptr);
  harness.RunToEnd();
  for (int i = 1; i < 3; ++i) EXPECT_EQ(harness.answers.at(choices[i].id).tokens, Reference(choices[i]));
  EXPECT_EQ(harness.scheduler.stats().num_forks, 0);
}

TEST(ForksTest, AnAbortedChoiceIsNotForked) {
  Harness harness(SmallOptions());
  const std::vector<EngineRequest> choices = Choices(3, 40, 5);
  AddAll(choices, &harness);
  ASSERT_TRUE(harness.Step());
  ASSERT_NE(harness.scheduler.Abort("c1"), nullptr);
  harness.RunToEnd();
  EXPECT_EQ(harness.answers.at("c2").tokens, Reference(choices[2]));
  EXPECT_EQ(harness.scheduler.stats().num_forks, 1);
}

TEST(ForksTest, ChoicesWithPromptLogprobsComputeTheirOwn) {
  Harness harness(SmallOptions());
  std::vector<EngineRequest> choices = Choices(2, 10, 3);
  OwnSampling(&choices[0])->num_prompt_logprobs = 0;
  choices[1].sampling = choices[0].sampling;
  AddAll(choices, &harness);
  harness.RunToEnd();
  EXPECT_EQ(harness.scheduler.stats().num_forks, 0);
  for (const EngineRequest& request : choices)
    EXPECT_EQ(harness.answers.at(request.id).prompt_logprobs.size(), 10u);
}

TEST(ForksTest, ARequestThatOnlyNamesAnotherPromptIsNotForked) {
  Harness harness(SmallOptions());
  std::vector<EngineRequest> choices = Choices(2, 10, 3);
  SetPromptToken(9, 77, &choices[1]);
  AddAll(choices, &harness);
  harness.RunToEnd();
  ExpectExact(choices, harness);
  EXPECT_EQ(harness.scheduler.stats().num_forks, 0);
}

// The contents of the source's last block are not with the forks yet when the engine goes to sleep.
TEST(ForksTest, AForkOutlivesASleepThatKeepsItsBlocks) {
  SchedulerOptions options = SmallOptions();
  options.blocks.num_host_blocks = 40;
  Harness harness(options, /*depth=*/1);
  const std::vector<EngineRequest> choices = Choices(3, 10, 8);
  AddAll(choices, &harness);
  ASSERT_TRUE(harness.Step());
  ASSERT_EQ(harness.steps[0].forks_size(), 2);
  harness.SleepKeeping();
  EXPECT_EQ(harness.steps.back().copies_size(), 2);
  harness.WakeKeeping();
  harness.RunToEnd();
  ExpectExact(choices, harness);
  EXPECT_EQ(harness.worker.num_computed_tokens(), 10 + 3 * 7);
}

TEST(ForksTest, ForksOutliveALossOfTheWorkers) {
  Harness harness(SmallOptions(), /*depth=*/1);
  const std::vector<EngineRequest> choices = Choices(3, 10, 8);
  AddAll(choices, &harness);
  ASSERT_TRUE(harness.Step());
  ASSERT_EQ(harness.steps[0].forks_size(), 2);
  EXPECT_EQ(harness.Lose().size(), 3u);
  harness.RunToEnd();
  ExpectExact(choices, harness);
}

TEST(ForksTest, ABadPromptEndsAllItsChoicesAndNothingElse) {
  Harness harness(SmallOptions(), /*depth=*/1, /*nan_token=*/7);
  AddAll(Choices(3, 10, 8), &harness);
  const EngineRequest other = MakeRequest("other", 6, 8, 100);
  harness.Run(other);
  for (const char* id : {"c0", "c1", "c2"}) EXPECT_EQ(harness.answers.at(id).reason, FinishReason::kError);
  EXPECT_EQ(harness.answers.at("other").tokens, Reference(other));
}

}  // namespace
}  // namespace somnus
