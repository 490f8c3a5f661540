// The sizes of requests in bytes: the bounds hold, steps stay below theirs, and no output depends on where a
// step was cut.

#include "coordinator/scheduler/step_size.h"

#include <random>

#include "coordinator/scheduler/request_check.h"
#include "tests/scheduler/scheduler_harness.h"

namespace somnus {
namespace {

// Parameters in which every list has `size` entries.
std::shared_ptr<const SamplingParams> Lists(int32_t size) {
  auto sampling = std::make_shared<SamplingParams>();
  sampling->min_tokens = 1;
  for (int32_t i = 0; i < size; ++i) {
    const int32_t id = (1 << 30) + i;
    sampling->logit_bias[id] = -1.5f;
    sampling->allowed_token_ids.push_back(id);
    sampling->stop_token_ids.push_back(id);
    sampling->eos_token_ids.push_back(-1 - i);
    sampling->bad_words.push_back(std::vector<int32_t>(static_cast<size_t>(i % 7), id));
    sampling->bad_texts.push_back(
        {1 << 20, std::vector<BadText::Piece>(static_cast<size_t>(i % 5), {id, 1 << 19, 1 << 20})});
  }
  return sampling;
}

// Requests that share one record, as the choices of one request do.
std::vector<EngineRequest> Choices(int count, const std::shared_ptr<const SamplingParams>& sampling) {
  std::vector<EngineRequest> requests;
  for (int i = 0; i < count; ++i) {
    requests.push_back(MakeRequest(std::to_string(i), 3 + i, 4));
    requests.back().sampling = sampling;
    requests.back().seed = 100 + static_cast<uint64_t>(i);
  }
  return requests;
}

TEST(StepSizeTest, BoundsAreNeverBelowWhatIsWritten) {
  std::mt19937 random(3);
  for (int round = 0; round < 200; ++round) {
    Sequence sequence;
    sequence.request = MakeRequest("a", 1 + static_cast<int32_t>(random() % 300), 1, 1 << 30);
    sequence.request.sampling = Lists(static_cast<int32_t>(random() % 300));
    sequence.request.seed = ~0ull;
    sequence.tokens = sequence.request.prompt;
    sequence.slot = 1 << 20;
    const int32_t block_size = 1 + static_cast<int32_t>(random() % 8);
    const std::vector<int32_t> blocks(sequence.tokens.size() / block_size + 1, 1 << 30);
    v1::StepRequest request;
    NewSequenceWriter writer(&request);
    const int64_t first = writer.Cost(sequence, block_size);
    writer.Add(sequence, blocks);
    EXPECT_LE(static_cast<int64_t>(request.ByteSizeLong()), first);
    EXPECT_LT(first, 4 * static_cast<int64_t>(request.ByteSizeLong()) + 1000) << "nor far above";
    const int64_t second = writer.Cost(sequence, block_size);
    EXPECT_EQ(second, first - StepSamplingBytes(*sequence.request.sampling));
    writer.Add(sequence, blocks);
    EXPECT_LE(static_cast<int64_t>(request.ByteSizeLong()), first + second);
  }
}

TEST(StepSizeTest, APositionOfPromptLogprobsHasABoundToo) {
  for (const int32_t alternatives : {0, 1, 20, 64}) {
    v1::PromptLogprobs message;
    const size_t empty = message.ByteSizeLong();
    v1::StepLogprobs* position = message.add_positions();
    for (int32_t i = 0; i <= alternatives; ++i) {
      position->add_token_ids((1 << 30) + i);
      position->add_logprobs(-1.0f);
    }
    position->set_rank(1 << 30);
    EXPECT_LE(static_cast<int64_t>(message.ByteSizeLong() - empty), PromptLogprobBytes(alternatives));
  }
}

TEST(StepSizeTest, ChoicesOfOneRequestAreSentWithOneRecord) {
  SchedulerOptions options = SmallOptions();
  options.blocks.enable_prefix_caching = false;  // else a choice waits for the others' blocks
  Scheduler scheduler(options);
  for (const EngineRequest& request : Choices(3, Lists(50))) scheduler.Add(request);
  scheduler.Add(MakeRequest("other", 2, 4));
  const StepPlan plan = scheduler.Schedule();
  ASSERT_EQ(plan.request.new_sequences_size(), 4);
  EXPECT_EQ(plan.request.samplings_size(), 2);
  EXPECT_EQ(plan.request.samplings(0).logit_bias_size(), 50);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(plan.request.new_sequences(i).sampling_index(), i == 3 ? 1 : 0);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(plan.request.new_sequences(i).seed(), 100u + i);
}

TEST(StepSizeTest, AStepTakesNoMoreNewSequencesThanItsBytes) {
  SchedulerOptions options = SmallOptions();
  options.blocks.enable_prefix_caching = false;  // as above
  const SchedulerOptions unbounded = options;
  const std::shared_ptr<const SamplingParams> large = Lists(100);
  options.step_bytes = StepSamplingBytes(*large) + 2 * NewSequenceBytes(8, options.blocks.block_size);
  Harness whole(unbounded), cut(options);
  for (Harness* harness : {&whole, &cut}) {
    for (const EngineRequest& request : Choices(5, large)) harness->Add(request);
    EngineRequest own = MakeRequest("own", 6, 4, 50);
    own.sampling = Lists(101);  // beyond a step's bound: admitted alone
    harness->Run(own);
  }
  EXPECT_EQ(whole.steps[0].new_sequences_size(), 6 - 2) << "as many as the tokens allow";
  EXPECT_EQ(cut.steps[0].new_sequences_size(), 2);
  EXPECT_EQ(cut.steps[1].new_sequences_size(), 2);
  EXPECT_EQ(cut.steps[2].new_sequences_size(), 1);
  EXPECT_EQ(cut.steps[3].new_sequences_size(), 1);
  for (const auto& [id, answer] : whole.answers) EXPECT_EQ(cut.answers[id].tokens, answer.tokens) << id;
}

TEST(StepSizeTest, PromptLogprobsAreCutByBytesAndStayTheSame) {
  SchedulerOptions options = SmallOptions();
  options.step_bytes = 5 * PromptLogprobBytes(2) + 10;
  Harness whole(SmallOptions()), cut(options);
  for (Harness* harness : {&whole, &cut}) {
    for (const char* id : {"a", "b"}) {
      EngineRequest request = MakeRequest(id, 30, 3, id[0]);
      OwnSampling(&request)->num_prompt_logprobs = 2;
      harness->Add(request);
    }
    harness->Run(MakeRequest("plain", 30, 3, 300));
  }
  EXPECT_EQ(cut.steps[0].sequences(0).num_tokens(), 5);
  EXPECT_GT(cut.steps.size(), whole.steps.size());
  for (const auto& [id, answer] : whole.answers) {
    const Answer& other = cut.answers[id];
    EXPECT_EQ(other.tokens, answer.tokens) << id;
    ASSERT_EQ(other.prompt_logprobs.size(), answer.prompt_logprobs.size()) << id;
    for (size_t i = 0; i < answer.prompt_logprobs.size(); ++i)
      EXPECT_EQ(other.prompt_logprobs[i].logprobs, answer.prompt_logprobs[i].logprobs) << id << " " << i;
  }
}

TEST(StepSizeTest, WhatNoStepCouldCarryIsRefusedByName) {
  SchedulerOptions options = SmallOptions();
  options.max_sequence_bytes = 2000;
  const auto refusal = [&](const EngineRequest& request) {
    const absl::Status status = CheckRequest(options, request);
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    return std::string(status.message().substr(0, status.message().find(':')));
  };
  EXPECT_TRUE(CheckRequest(options, MakeRequest("a", 10, 10)).ok());
  EngineRequest request = MakeRequest("a", 10, 10);
  for (int32_t id = 0; id < 1000; ++id) OwnSampling(&request)->logit_bias[id] = 1;
  EXPECT_EQ(refusal(request), "logit_bias");
  request = MakeRequest("a", 10, 10);
  OwnSampling(&request)->allowed_token_ids.resize(1000);
  EXPECT_EQ(refusal(request), "allowed_token_ids");
  request = MakeRequest("a", 10, 10);
  OwnSampling(&request)->stop_token_ids.resize(1000);
  EXPECT_TRUE(CheckRequest(options, request).ok()) << "workers hear of them only to suppress them";
  OwnSampling(&request)->min_tokens = 1;
  EXPECT_EQ(refusal(request), "stop_token_ids");
  request = MakeRequest("a", 10, 10);
  OwnSampling(&request)->bad_words = {std::vector<int32_t>(1000)};
  EXPECT_EQ(refusal(request), "bad_words");
  options.max_sequence_bytes = 300;
  EXPECT_EQ(refusal(MakeRequest("a", 40, 30)), "prompt");
  request = MakeRequest("a", 1, 1);
  OwnSampling(&request)->num_logprobs = kMaxStepLogprobs + 1;
  EXPECT_EQ(refusal(request), "logprobs");
}

}  // namespace
}  // namespace somnus
