// Sequences that wait with their blocks, through sleeps that keep blocks: exactly the tokens of an
// undisturbed run, and no kept token is computed again.

#include <gtest/gtest.h>

#include "tests/scheduler/scheduler_harness.h"

namespace somnus {
namespace {

// Each token but the last is computed.
int64_t TokensOf(const EngineRequest& request) {
  return static_cast<int64_t>(request.prompt.size()) + request.max_tokens - 1;
}

SchedulerOptions KeepingOptions(int32_t num_blocks = 64, int32_t num_host_blocks = 64) {
  SchedulerOptions options = SmallOptions(num_blocks);
  options.blocks.num_host_blocks = num_host_blocks;
  return options;
}

class SuspensionTest : public ::testing::TestWithParam<int> {
 protected:
  size_t depth() const { return static_cast<size_t>(GetParam()); }
};
INSTANTIATE_TEST_SUITE_P(Overlap, SuspensionTest, ::testing::Values(0, 1));

// The prompt of one request takes two steps, so the test covers sleeps in prefill and in decode.
TEST_P(SuspensionTest, ASleepAtAnyMomentComputesNothingAgain) {
  for (int after = 0; after < 14; ++after) {
    Harness harness(KeepingOptions(), depth());
    const EngineRequest a = MakeRequest("a", 18, 9), b = MakeRequest("b", 6, 9, 40);
    harness.Add(a, b);
    for (int i = 0; i < after; ++i) harness.Step();
    harness.SleepKeeping();
    EXPECT_EQ(harness.scheduler.num_running(), 0);
    harness.WakeKeeping();
    harness.RunToEnd();
    ASSERT_FALSE(HasFatalFailure()) << after;
    EXPECT_EQ(harness.answers["a"].tokens, Reference(a)) << after;
    EXPECT_EQ(harness.answers["b"].tokens, Reference(b)) << after;
    EXPECT_EQ(harness.worker.num_computed_tokens(), TokensOf(a) + TokensOf(b)) << after;
    EXPECT_EQ(harness.scheduler.stats().num_preemptions(), 0) << after;
    EXPECT_EQ(harness.scheduler.blocks().pool().num_used(), 0);
    EXPECT_EQ(harness.scheduler.blocks().host().pool().num_used(), 0);
  }
}

TEST_P(SuspensionTest, TheTokensThatWereNotComputedAgainAreCounted) {
  Harness harness(KeepingOptions(), depth());
  harness.Add(MakeRequest("a", 10, 9));
  for (int i = 0; i < 3; ++i) harness.Step();
  harness.SleepKeeping();
  EXPECT_EQ(harness.scheduler.stats().kept_tokens, 0) << "they are not back yet";
  harness.WakeKeeping();
  const int64_t steps = static_cast<int64_t>(harness.steps.size());
  EXPECT_EQ(harness.scheduler.stats().kept_tokens, 10 + 2);
  EXPECT_EQ(harness.scheduler.stats().kept_blocks, 3);
  harness.Step();
  const v1::StepRequest& step = harness.steps[steps];
  ASSERT_EQ(step.new_sequences_size(), 1);
  EXPECT_EQ(step.new_sequences(0).num_computed_tokens(), 12);
  EXPECT_EQ(step.new_sequences(0).token_ids_size(), 13);
  EXPECT_EQ(step.sequences(0).num_tokens(), 1);
}

TEST_P(SuspensionTest, PromptLogprobsAreDeliveredOnceAndComputedOnce) {
  for (int after = 1; after < 6; ++after) {
    Harness harness(KeepingOptions(), depth());
    EngineRequest request = MakeRequest("a", 40, 3);
    OwnSampling(&request)->num_prompt_logprobs = 0;
    harness.Add(request);
    for (int i = 0; i < after; ++i) harness.Step();
    harness.SleepKeeping();
    harness.WakeKeeping();
    harness.RunToEnd();
    ASSERT_EQ(harness.answers["a"].prompt_logprobs.size(), 40u) << after;
    for (int32_t i = 1; i < 40; ++i) {
      EXPECT_EQ(harness.answers["a"].prompt_logprobs[i].logprobs[0],
                FakeWorker::ReferenceLogprob(request.prompt, i));
    }
    EXPECT_EQ(harness.answers["a"].tokens, Reference(request)) << after;
    EXPECT_EQ(harness.worker.num_computed_tokens(), TokensOf(request)) << after;
  }
}

TEST_P(SuspensionTest, ThePrefixCacheOutlivesTheSleep) {
  Harness harness(KeepingOptions(), depth());
  const EngineRequest first = MakeRequest("first", 12, 4);
  harness.Run(first);
  harness.SleepKeeping();
  harness.WakeKeeping();
  EngineRequest second = first;
  second.id = "second";
  harness.Run(second);
  EXPECT_EQ(harness.answers["second"].num_cached, 8);
  EXPECT_EQ(harness.answers["second"].tokens, Reference(first));
}

// The first in the order of service is kept whole, and the second is computed again, but for the first block.
TEST_P(SuspensionTest, WhatDoesNotFitIsPreempted) {
  Harness harness(KeepingOptions(64, /*num_host_blocks=*/4), depth());
  const EngineRequest a = MakeRequest("a", 10, 9), b = MakeRequest("b", 6, 9, 40);
  harness.Add(a, b);
  for (int i = 0; i < 3; ++i) harness.Step();
  harness.SleepKeeping();
  EXPECT_EQ(harness.scheduler.sequences().num_suspended(), 1);
  EXPECT_EQ(harness.scheduler.stats().num_preemptions(), 1);
  const int64_t computed_b = harness.worker.num_computed_tokens() - 12;
  harness.WakeKeeping();
  EXPECT_EQ(harness.scheduler.stats().kept_tokens, 12);
  harness.RunToEnd();
  EXPECT_EQ(harness.answers["a"].tokens, Reference(a));
  EXPECT_EQ(harness.answers["b"].tokens, Reference(b));
  EXPECT_EQ(harness.worker.num_computed_tokens(), TokensOf(a) + TokensOf(b) + computed_b - 4);
}

// The sleep failed on the workers, which still have the cache.
TEST_P(SuspensionTest, ASleepThatDidNotHappenLosesNothing) {
  Harness harness(KeepingOptions(64, /*num_host_blocks=*/4), depth());
  const EngineRequest a = MakeRequest("a", 10, 9), b = MakeRequest("b", 6, 9, 40);
  harness.Add(a, b);
  for (int i = 0; i < 3; ++i) harness.Step();
  harness.Suspend();
  EXPECT_FALSE(harness.scheduler.kept().Choose().empty());
  harness.Check();
  harness.scheduler.kept().Abandon();
  harness.Check();
  EXPECT_EQ(harness.scheduler.blocks().host().pool().num_used(), 0);
  harness.RunToEnd();
  EXPECT_EQ(harness.answers["a"].tokens, Reference(a));
  EXPECT_EQ(harness.answers["b"].tokens, Reference(b));
  EXPECT_EQ(harness.worker.num_computed_tokens(), TokensOf(a) + TokensOf(b));
  EXPECT_EQ(harness.scheduler.stats().kept_blocks, 0);
}

TEST_P(SuspensionTest, WhatEndsWhileItSleepsGivesItsBlocksBack) {
  Harness harness(KeepingOptions(), depth());
  const EngineRequest a = MakeRequest("a", 10, 9), b = MakeRequest("b", 6, 9, 40);
  harness.Add(a, b);
  for (int i = 0; i < 3; ++i) harness.Step();
  harness.SleepKeeping();
  ASSERT_NE(harness.scheduler.Abort("a"), nullptr);
  harness.Check();
  harness.WakeKeeping();
  harness.RunToEnd();
  EXPECT_EQ(harness.answers["b"].tokens, Reference(b));
  EXPECT_EQ(harness.scheduler.blocks().pool().num_used(), 0);
}

TEST_P(SuspensionTest, ALossWhileItSleepsForgetsEverything) {
  Harness harness(KeepingOptions(), depth());
  const EngineRequest a = MakeRequest("a", 10, 9);
  harness.Add(a);
  for (int i = 0; i < 3; ++i) harness.Step();
  harness.SleepKeeping();
  harness.Lose();
  EXPECT_EQ(harness.scheduler.sequences().num_suspended(), 0);
  EXPECT_EQ(harness.scheduler.blocks().host().pool().num_used(), 0);
  EXPECT_TRUE(harness.scheduler.blocks().kept().blocks().empty());
  EXPECT_EQ(harness.scheduler.blocks().pool().num_cached(), 0);
  harness.RunToEnd();
  EXPECT_EQ(harness.answers["a"].tokens, Reference(a));
}

TEST_P(SuspensionTest, AnotherSchedulerCanGoOnWithASuspendedSequence) {
  Harness harness(KeepingOptions(), depth()), other(KeepingOptions(), depth());
  const EngineRequest a = MakeRequest("a", 10, 9);
  harness.Add(a);
  for (int i = 0; i < 3; ++i) harness.Step();
  harness.SleepKeeping();
  std::vector<int32_t> tokens = harness.answers["a"].tokens;
  for (EngineRequest& request : harness.scheduler.ReleaseAll()) other.Add(std::move(request));
  harness.Check();
  EXPECT_EQ(harness.scheduler.blocks().pool().num_used(), 0);
  other.RunToEnd();
  tokens.insert(tokens.end(), other.answers["a"].tokens.begin(), other.answers["a"].tokens.end());
  EXPECT_EQ(tokens, Reference(a));
}

// A sequence that waited before a sequence with blocks, and is more urgent, must not wait for the blocks for
// ever.
TEST_P(SuspensionTest, OneAheadTakesTheBlocksOfThoseBehind) {
  SchedulerOptions options = KeepingOptions(/*num_blocks=*/9);  // 8 blocks of 4 tokens
  options.policy = SchedulingPolicy::kPriority;
  Harness harness(options, depth());
  EngineRequest patient = MakeRequest("patient", 18, 9);
  patient.priority = 5;
  harness.Add(patient);
  for (int i = 0; i < 4; ++i) harness.Step();
  harness.SleepKeeping();
  harness.WakeKeeping();
  const EngineRequest urgent = MakeRequest("urgent", 25, 5, 40);
  harness.Run(urgent);
  ASSERT_FALSE(HasFatalFailure());
  EXPECT_EQ(harness.answers["urgent"].tokens, Reference(urgent));
  EXPECT_EQ(harness.answers["patient"].tokens, Reference(patient));
  EXPECT_LT(harness.answers["urgent"].first_token_step, harness.steps.back().step_id());
  EXPECT_EQ(harness.scheduler.stats().num_preemptions(), 1);
}

}  // namespace
}  // namespace somnus
