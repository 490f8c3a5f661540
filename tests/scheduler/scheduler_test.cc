#include "coordinator/scheduler/scheduler.h"

#include <gtest/gtest.h>

#include "coordinator/scheduler/request_check.h"
#include "tests/scheduler/scheduler_harness.h"

namespace somnus {
namespace {

std::vector<int32_t> Reference(const EngineRequest& request, int32_t count) {
  return FakeWorker::ReferenceTokens(request.prompt, count);
}

class DepthTest : public ::testing::TestWithParam<int> {
 protected:
  size_t depth() const { return static_cast<size_t>(GetParam()); }
};
INSTANTIATE_TEST_SUITE_P(Overlap, DepthTest, ::testing::Values(0, 1));

TEST_P(DepthTest, OneRequestIsChunkedUnderTheBudgetAndAnsweredExactly) {
  Harness harness(SmallOptions(), depth());
  const EngineRequest request = MakeRequest("a", 40, 10);
  harness.Run(request);
  EXPECT_EQ(harness.answers["a"].tokens, Reference(request, 10));
  EXPECT_EQ(harness.answers["a"].reason, FinishReason::kLength);
  EXPECT_EQ(harness.steps[0].new_sequences(0).block_ids_size(), 10) << "for all of the prompt";
  EXPECT_EQ(harness.steps[0].sequences(0).num_tokens(), 16);
  EXPECT_EQ(harness.steps[1].sequences(0).num_tokens(), 16);
  EXPECT_EQ(harness.steps[2].sequences(0).num_tokens(), 8);
  EXPECT_EQ(harness.steps.size(), 12u) << "no step beyond max_tokens, at either depth";
  EXPECT_EQ(harness.scheduler.blocks().pool().num_used(), 0);
}

// A prompt has blocks for all tokens before the first token is computed, however small the chunks.
TEST_P(DepthTest, APromptBeginsWhereAllOfItHasRoom) {
  for (const bool has_room : {true, false}) {
    SchedulerOptions options = SmallOptions(/*num_blocks=*/has_room ? 13 : 12);
    options.blocks.enable_prefix_caching = false;
    Harness harness(options, depth());
    const EngineRequest first = MakeRequest("first", 8, 3), next = MakeRequest("next", 40, 4, 500);
    harness.Add(first);  // it takes two of the 12 or 11 blocks
    harness.Add(next);
    harness.Step();
    const v1::StepRequest& step = harness.steps[0];
    ASSERT_EQ(step.new_sequences_size(), has_room ? 2 : 1);
    ASSERT_EQ(step.sequences_size(), has_room ? 2 : 1);
    if (has_room) {
      EXPECT_EQ(step.sequences(1).num_tokens(), 8) << "what the first one has left of the budget";
      EXPECT_EQ(step.new_sequences(1).block_ids_size(), 10);
    }
    harness.RunToEnd();
    EXPECT_EQ(harness.answers["first"].tokens, Reference(first, 3));
    EXPECT_EQ(harness.answers["next"].tokens, Reference(next, 4));
  }
}

TEST_P(DepthTest, DecodesAndAChunkShareAStep) {
  Harness harness(SmallOptions(), depth());
  harness.Add(MakeRequest("a", 4, 20));
  harness.Step();
  harness.Add(MakeRequest("b", 40, 4, 500));
  harness.Step();
  const v1::StepRequest& mixed = harness.steps.back();
  ASSERT_EQ(mixed.sequences_size(), 2);
  EXPECT_EQ(mixed.sequences(0).num_tokens(), 1);
  EXPECT_EQ(mixed.sequences(1).num_tokens(), 15);
  harness.RunToEnd();
  EXPECT_EQ(harness.answers["b"].tokens, Reference(MakeRequest("b", 40, 4, 500), 4));
}

TEST_P(DepthTest, ManyMoreSequencesThanSlots) {
  Harness harness(SmallOptions(), depth());
  for (int i = 0; i < 30; ++i) harness.Add(MakeRequest(std::to_string(i), 3 + i % 9, 1 + i % 7, i * 10));
  harness.RunToEnd();
  for (int i = 0; i < 30; ++i) {
    EXPECT_EQ(harness.answers[std::to_string(i)].tokens,
              Reference(MakeRequest("", 3 + i % 9, 0, i * 10), 1 + i % 7))
        << i;
  }
}

TEST_P(DepthTest, PreemptionByRecomputeTakesTheLatestAndKeepsTheTokens) {
  Harness harness(SmallOptions(/*num_blocks=*/13), depth());  // 48 tokens of cache for three sequences of 28
  for (int i = 0; i < 3; ++i) harness.Add(MakeRequest(std::to_string(i), 8, 20, i * 100));
  harness.RunToEnd();
  EXPECT_GT(harness.scheduler.stats().num_preemptions(), 0);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(harness.answers[std::to_string(i)].tokens, Reference(MakeRequest("", 8, 0, i * 100), 20)) << i;
  }
  // The first is never sent twice, so the first was never preempted.
  int first_sent = 0;
  for (const v1::StepRequest& step : harness.steps) {
    for (const v1::NewSequence& sequence : step.new_sequences()) first_sent += sequence.token_ids(0) == 0;
  }
  EXPECT_EQ(first_sent, 1);
}

TEST_P(DepthTest, PrefixHitsSkipWorkAndChangeNothing) {
  Harness harness(SmallOptions(), depth());
  harness.Run(MakeRequest("a", 12, 5));
  harness.Run(MakeRequest("b", 12, 5));
  EXPECT_EQ(harness.answers["a"].num_cached, 0);
  EXPECT_EQ(harness.answers["b"].num_cached, 8) << "a full hit computes its last block again";
  EXPECT_EQ(harness.answers["b"].tokens, harness.answers["a"].tokens);
  EngineRequest longer = MakeRequest("c", 12, 5);  // a's prompt and output, as in a chat's next turn
  for (int32_t token : harness.answers["a"].tokens) SetPromptToken(longer.prompt.size(), token, &longer);
  harness.Add(longer);
  EngineRequest salted = MakeRequest("d", 12, 5);
  salted.cache_salt = "tenant";
  harness.Run(salted);
  EXPECT_EQ(harness.answers["c"].num_cached, 16);
  EXPECT_EQ(harness.answers["c"].tokens, Reference(longer, 5));
  EXPECT_EQ(harness.answers["d"].num_cached, 0);
  EXPECT_EQ(harness.answers["d"].tokens, harness.answers["a"].tokens);
  EXPECT_EQ(harness.scheduler.stats().prefix_cache_hits, 24);
  EXPECT_EQ(harness.scheduler.stats().prefix_cache_queries, 12 * 3 + 17);
  const CacheMissCounts& misses = harness.scheduler.stats().prefix_cache_misses;
  EXPECT_EQ(misses.of(CacheMiss::kNotCached), 8) << "a's";
  EXPECT_EQ(misses.of(CacheMiss::kSalt), 8) << "d's";
  EXPECT_EQ(misses.of(CacheMiss::kLastToken), 3 * 4) << "all but c's, whose last block is not full";
  EXPECT_EQ(misses.of(CacheMiss::kPartialBlock), 1);
  EXPECT_EQ(misses.of(CacheMiss::kPromptLogprobs), 0);
  EngineRequest scored = MakeRequest("e", 12, 5);
  OwnSampling(&scored)->num_prompt_logprobs = 0;
  harness.Run(scored);
  EXPECT_EQ(misses.of(CacheMiss::kPromptLogprobs), 12);
}

TEST_P(DepthTest, NoPrefixCachingMeansNoHits) {
  SchedulerOptions options = SmallOptions();
  options.blocks.enable_prefix_caching = false;
  Harness harness(options, depth());
  for (const char* id : {"a", "b"}) {
    harness.Run(MakeRequest(id, 12, 5));
    EXPECT_EQ(harness.answers[id].num_cached, 0);
  }
  EXPECT_EQ(harness.answers["a"].tokens, harness.answers["b"].tokens);
  EXPECT_EQ(harness.scheduler.blocks().pool().num_cached(), 0);
  EXPECT_EQ(harness.scheduler.stats().prefix_cache_misses.of(CacheMiss::kOff), 2 * 12);
}

TEST_P(DepthTest, StopsDropTheStaleToken) {
  Harness harness(SmallOptions(), depth());
  const std::vector<int32_t> reference = Reference(MakeRequest("", 5, 0), 10);
  EngineRequest eos = MakeRequest("eos", 5, 10);
  OwnSampling(&eos)->eos_token_ids = {reference[3]};
  EngineRequest stop = MakeRequest("stop", 5, 10);
  OwnSampling(&stop)->stop_token_ids = {reference[2]};
  EngineRequest late = MakeRequest("late", 5, 10);  // the stop counts from the fifth output on only
  SamplingParams* from_the_fifth = OwnSampling(&late);
  from_the_fifth->stop_token_ids = {reference[2], reference[4]};
  from_the_fifth->min_tokens = 5;
  harness.Run(eos, stop, late, MakeRequest("free", 5, 10));
  const auto head = [&](size_t n) { return std::vector<int32_t>(reference.begin(), reference.begin() + n); };
  EXPECT_EQ(harness.answers["eos"].tokens, head(4));
  EXPECT_EQ(harness.answers["eos"].reason, FinishReason::kStop);
  EXPECT_FALSE(harness.answers["eos"].stop_token_id.has_value());
  EXPECT_EQ(harness.answers["stop"].tokens, head(3));
  EXPECT_EQ(harness.answers["stop"].stop_token_id, reference[2]);
  EXPECT_EQ(harness.answers["late"].tokens, head(5));
  EXPECT_EQ(harness.answers["late"].stop_token_id, reference[4]);
  EXPECT_EQ(harness.answers["free"].tokens, reference);
  EXPECT_EQ(harness.scheduler.blocks().pool().num_used(), 0);
}

TEST_P(DepthTest, AnswersEndAtMaxModelLen) {
  SchedulerOptions options = SmallOptions();
  options.max_model_len = 20;
  Harness harness(options, depth());
  harness.Run(MakeRequest("a", 15, 100));
  EXPECT_EQ(harness.answers["a"].tokens, Reference(MakeRequest("", 15, 0), 5));
  EXPECT_EQ(harness.answers["a"].reason, FinishReason::kLength);
}

TEST_P(DepthTest, MaxTokensZeroComputesThePromptOnly) {
  Harness harness(SmallOptions(), depth());
  EngineRequest request = MakeRequest("a", 20, 0);
  OwnSampling(&request)->num_prompt_logprobs = 0;
  harness.Run(request);
  EXPECT_TRUE(harness.answers["a"].tokens.empty());
  EXPECT_EQ(harness.answers["a"].reason, FinishReason::kLength);
  EXPECT_EQ(harness.answers["a"].prompt_logprobs.size(), 20u);
}

TEST_P(DepthTest, PromptLogprobsComeOnceWholeAndWithoutPrefixHits) {
  Harness harness(SmallOptions(/*num_blocks=*/16), depth());
  harness.Run(MakeRequest("warm", 30, 1));
  harness.Add(MakeRequest("older", 4, 40, 300));  // displaces the next one again and again
  EngineRequest request = MakeRequest("a", 30, 20);
  SamplingParams* own = OwnSampling(&request);
  own->num_prompt_logprobs = 0;
  own->num_logprobs = 0;
  harness.Run(request);
  EXPECT_GT(harness.scheduler.stats().num_preemptions(), 0);
  const Answer& answer = harness.answers["a"];
  EXPECT_EQ(answer.num_cached, 0);
  ASSERT_EQ(answer.prompt_logprobs.size(), 30u);
  EXPECT_TRUE(answer.prompt_logprobs[0].token_ids.empty());
  for (int32_t i = 1; i < 30; ++i) {
    EXPECT_EQ(answer.prompt_logprobs[i].token_ids[0], request.prompt[i]);
    EXPECT_EQ(answer.prompt_logprobs[i].logprobs[0], FakeWorker::ReferenceLogprob(request.prompt, i)) << i;
  }
  std::vector<int32_t> all = request.prompt;
  all.insert(all.end(), answer.tokens.begin(), answer.tokens.end());
  ASSERT_EQ(answer.logprobs.size(), 20u);
  for (int32_t i = 0; i < 20; ++i) {
    EXPECT_EQ(answer.logprobs[i].logprobs[0], FakeWorker::ReferenceLogprob(all, 30 + i)) << i;
  }
}

TEST(SchedulerTest, AbortFreesBlocksAtOnceWithAStepInFlight) {
  Harness harness(SmallOptions(/*num_blocks=*/9), 1);
  harness.Add(MakeRequest("a", 28, 4));
  harness.Step();  // in flight
  EXPECT_GT(harness.in_flight(), 0u);
  const SequencePtr aborted = harness.scheduler.Abort("a");
  ASSERT_NE(aborted, nullptr);
  EXPECT_EQ(harness.scheduler.Abort("a"), nullptr);
  EXPECT_EQ(harness.scheduler.blocks().pool().num_used(), 0);
  // A second request takes the same blocks while the aborted request's step is under way.
  harness.Run(MakeRequest("b", 28, 4, 300));
  EXPECT_EQ(harness.answers["b"].tokens, Reference(MakeRequest("", 28, 0, 300), 4));
  EXPECT_FALSE(harness.answers.contains("a"));
}

TEST(SchedulerTest, AbortOfAWaitingAndOfAnUnknownRequest) {
  Harness harness(SmallOptions());
  harness.Add(MakeRequest("a", 4, 4));
  ASSERT_NE(harness.scheduler.Abort("a"), nullptr);
  EXPECT_EQ(harness.scheduler.Abort("nobody"), nullptr);
  EXPECT_FALSE(harness.scheduler.has_sequences());
  EXPECT_FALSE(harness.Step());
}

TEST(SchedulerTest, PriorityIsServedFirstAndPreemptedLast) {
  SchedulerOptions options = SmallOptions();
  options.max_num_seqs = 1;
  options.policy = SchedulingPolicy::kPriority;
  for (bool priority : {true, false}) {
    options.policy = priority ? SchedulingPolicy::kPriority : SchedulingPolicy::kFcfs;
    Harness harness(options);
    EngineRequest low = MakeRequest("low", 4, 2, 10), high = MakeRequest("high", 4, 2, 20);
    low.priority = 5;
    high.priority = -1;
    harness.Add(low, high);
    harness.Step();
    EXPECT_EQ(harness.steps[0].new_sequences(0).token_ids(0), priority ? 20 : 10);
  }
}

TEST(SchedulerTest, ChecksWhatCanNeverBeServed) {
  SchedulerOptions options = SmallOptions(/*num_blocks=*/6);  // 20 tokens
  EXPECT_TRUE(CheckRequest(options, MakeRequest("a", 15, 5)).ok());
  EXPECT_TRUE(absl::IsInvalidArgument(CheckRequest(options, MakeRequest("a", 15, 6))));
  EXPECT_TRUE(absl::IsInvalidArgument(CheckRequest(options, MakeRequest("a", 0, 5))));
  options = SmallOptions();
  EXPECT_TRUE(CheckRequest(options, MakeRequest("a", 99, 1000)).ok());
  EXPECT_TRUE(absl::IsInvalidArgument(CheckRequest(options, MakeRequest("a", 100, 1))));
  EXPECT_TRUE(CheckRequest(options, MakeRequest("a", 100, 0)).ok());
}

TEST(SchedulerTest, PreemptAllAndFlushLeaveTheWorkersEmpty) {
  Harness harness(SmallOptions());
  harness.Add(MakeRequest("a", 6, 8), MakeRequest("b", 6, 8, 50));
  for (int i = 0; i < 4; ++i) harness.Step();
  harness.scheduler.PreemptAll();
  EXPECT_EQ(harness.scheduler.num_running(), 0);
  EXPECT_EQ(harness.scheduler.num_waiting(), 2);
  const StepPlan flush = harness.scheduler.FlushFreedSlots();
  EXPECT_EQ(flush.request.freed_slots_size(), 2);
  harness.Send(flush);
  harness.Receive();
  EXPECT_EQ(harness.scheduler.FlushFreedSlots().request.freed_slots_size(), 0);
  harness.scheduler.ResetPrefixCache();
  harness.RunToEnd();
  EXPECT_EQ(harness.answers["a"].tokens, Reference(MakeRequest("", 6, 0), 8));
  EXPECT_EQ(harness.answers["b"].tokens, Reference(MakeRequest("", 6, 0, 50), 8));
}

TEST(SchedulerTest, RepliesThatDoNotFitAreErrors) {
  Scheduler scheduler(SmallOptions());
  v1::StepReply reply;
  reply.set_step_id(1);
  EXPECT_TRUE(absl::IsInternal(scheduler.Update(reply).status()));
  scheduler.Add(MakeRequest("a", 4, 4));
  const StepPlan plan = scheduler.Schedule();
  reply.set_step_id(2);
  EXPECT_TRUE(absl::IsInternal(scheduler.Update(reply).status()));
  reply.set_step_id(1);
  v1::SampledToken* token = reply.add_tokens();
  token->set_slot(plan.request.sequences(0).slot());
  token->set_token_id(5);
  const absl::StatusOr<std::vector<SequenceOutput>> outputs = scheduler.Update(reply);
  ASSERT_TRUE(outputs.ok()) << "the step is still due: " << outputs.status();
  ASSERT_EQ(outputs->size(), 1u);
  EXPECT_EQ((*outputs)[0].output.token_ids, std::vector<int32_t>{5});
}

TEST(SchedulerTest, SamplingTravelsWhole) {
  Scheduler scheduler(SmallOptions());
  EngineRequest request = MakeRequest("a", 4, 4);
  request.seed = 1ull << 63;
  SamplingParams* own = OwnSampling(&request);
  own->temperature = 0.5f;
  own->top_k = 7;
  own->logit_bias = {{3, -2.0f}};
  own->min_tokens = 2;
  own->eos_token_ids = {1};
  own->stop_token_ids = {2};
  own->bad_words = {{4, 5}};
  own->bad_texts = {{3, {{6, 0, 2}, {7, 2, 3}}}};
  own->allowed_token_ids = {8};
  scheduler.Add(request);
  const StepPlan plan = scheduler.Schedule();
  const v1::StepSampling& sampling = plan.request.samplings(0);
  EXPECT_EQ(sampling.temperature(), 0.5f);
  EXPECT_EQ(sampling.top_k(), 7);
  EXPECT_EQ(plan.request.new_sequences(0).seed(), 1ull << 63);
  EXPECT_EQ(sampling.logit_bias().at(3), -2.0f);
  EXPECT_EQ(sampling.suppress_token_ids_size(), 2);
  EXPECT_EQ(sampling.bad_words(0).token_ids_size(), 2);
  EXPECT_EQ(sampling.bad_texts(0).num_bytes(), 3);
  EXPECT_EQ(sampling.bad_texts(0).token_ids(1), 7);
  EXPECT_EQ(sampling.bad_texts(0).from(1), 2);
  EXPECT_EQ(sampling.bad_texts(0).to(0), 2);
  EXPECT_EQ(sampling.allowed_token_ids(0), 8);
  EXPECT_EQ(sampling.num_logprobs(), -1);
  EXPECT_EQ(sampling.num_prompt_logprobs(), -1);
}

}  // namespace
}  // namespace somnus
