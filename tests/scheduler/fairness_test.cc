// Which sequences get how many tokens of a step, which go ahead, and which are displaced.

#include <gtest/gtest.h>

#include "tests/scheduler/scheduler_harness.h"

namespace somnus {
namespace {

// Budget 16, so that a prompt of more than 8 tokens is long.
SchedulerOptions Options(int32_t num_blocks = 400) {
  SchedulerOptions options = SmallOptions(num_blocks);
  options.max_model_len = 400;
  return options;
}

EngineRequest WithPriority(EngineRequest request, int32_t priority) {
  request.priority = priority;
  return request;
}

// Tokens of each entry of step `step_id`.
std::vector<int32_t> TokensOf(const Harness& harness, int64_t step_id) {
  std::vector<int32_t> tokens;
  for (const v1::ScheduledSequence& sequence : harness.steps[step_id - 1].sequences())
    tokens.push_back(sequence.num_tokens());
  return tokens;
}

class FairnessTest : public ::testing::TestWithParam<int> {
 protected:
  size_t depth() const { return static_cast<size_t>(GetParam()); }
  void ExpectExact(Harness& harness, const std::vector<EngineRequest>& requests) {
    for (const EngineRequest& request : requests)
      EXPECT_EQ(harness.answers[request.id].tokens, Reference(request)) << request.id;
  }
};
INSTANTIATE_TEST_SUITE_P(Overlap, FairnessTest, ::testing::Values(0, 1));

TEST_P(FairnessTest, AShortPromptBehindALongOneHasItsFirstTokenInTheNextStep) {
  Harness harness(Options(), depth());
  const EngineRequest lengthy = MakeRequest("long", 160, 2), brief = MakeRequest("short", 6, 3, 500);
  harness.Add(lengthy);
  for (int i = 0; i < 3; ++i) harness.Step();
  harness.Run(brief);
  EXPECT_EQ(TokensOf(harness, 3), std::vector<int32_t>{16}) << "alone it has the whole budget";
  EXPECT_EQ(TokensOf(harness, 4), (std::vector<int32_t>{10, 6})) << "and what the short one leaves";
  EXPECT_EQ(harness.answers["short"].first_token_step, 4);
  EXPECT_EQ(harness.answers["long"].first_token_step, 11);
  ExpectExact(harness, {lengthy, brief});
}

// Short prompts come in every step, more than the step has room for. A long prompt has half of the step all
// the same, and so has the next long prompt.
TEST_P(FairnessTest, AStreamOfShortPromptsStarvesNoLongOne) {
  Harness harness(Options(), depth());
  const EngineRequest first = MakeRequest("first", 160, 1), second = MakeRequest("second", 160, 1, 200);
  harness.Add(first, second);
  for (int i = 0; i < 50; ++i) {
    for (int j = 0; j < 3; ++j)
      harness.Add(MakeRequest(std::to_string(3 * i + j), 6, 1, 1000 + 100 * (3 * i + j)));
    harness.Step();
  }
  EXPECT_GT(harness.scheduler.num_waiting(), 20) << "there were always others";
  EXPECT_GT(harness.answers["first"].first_token_step, 0);
  EXPECT_LE(harness.answers["first"].first_token_step, 20 + 1);
  EXPECT_GT(harness.answers["second"].first_token_step, 0);
  EXPECT_LE(harness.answers["second"].first_token_step, 2 * (20 + 1));
  harness.RunToEnd();
  ExpectExact(harness, {first, second});
}

// Six prompts that take twenty steps each at half of a step, and a prompt of 20 tokens, which is long, too.
TEST_P(FairnessTest, AShorterOneOfTwoLongPromptsOvertakes) {
  int64_t last_alone = 0;
  for (const bool has_shorter : {false, true}) {
    Harness harness(Options(), depth());
    std::vector<EngineRequest> requests;
    for (int i = 0; i < 6; ++i) requests.push_back(MakeRequest("long" + std::to_string(i), 160, 1, 100 * i));
    for (const EngineRequest& request : requests) harness.Add(request);
    harness.Step();
    if (has_shorter) {
      requests.push_back(MakeRequest("shorter", 20, 1, 700));
      harness.Add(requests.back());
    }
    harness.RunToEnd();
    ExpectExact(harness, requests);
    const int64_t last = harness.answers["long5"].first_token_step;
    if (!has_shorter) last_alone = last;
    if (!has_shorter) continue;
    EXPECT_EQ(harness.answers["shorter"].first_token_step, 4) << "half of each step is its own";
    EXPECT_EQ(TokensOf(harness, 2), (std::vector<int32_t>{8, 8}));
    EXPECT_LE(last, last_alone + 2);
  }
}

// A long prompt that is the shorter comes in every step, which has not room for the whole prompt. A much
// longer prompt is overtaken by prompts that come soon afterwards, and by no later prompts.
TEST_P(FairnessTest, AStreamOfShorterLongPromptsStarvesNoLongOne) {
  Harness harness(Options(), depth());
  const EngineRequest first = MakeRequest("first", 160, 1), second = MakeRequest("second", 160, 1, 200);
  harness.Add(first, second);
  for (int i = 0; i < 200; ++i) {
    harness.Add(MakeRequest(std::to_string(i), 24, 1, 1000 + 100 * i));
    harness.Step();
  }
  EXPECT_GT(harness.scheduler.num_waiting(), 20) << "there were always others";
  EXPECT_GT(harness.answers["first"].first_token_step, 0);
  EXPECT_LE(harness.answers["first"].first_token_step, 20 + 1) << "it has its half of each step";
  // A step's wait is worth two tokens, so that 68 later prompts overtake "second".
  EXPECT_GT(harness.answers["second"].first_token_step, 0);
  EXPECT_LE(harness.answers["second"].first_token_step, (160 + 68 * 24 + 160) / 16 + 4);
  EXPECT_GT(harness.answers["0"].first_token_step, 0);
  EXPECT_LE(harness.answers["0"].first_token_step, 4);
  harness.RunToEnd();
  ExpectExact(harness, {first, second});
}

TEST_P(FairnessTest, AShortPromptIsFoundBehindAnyNumberOfLongOnes) {
  Harness harness(Options(), depth());
  for (int i = 0; i < 200; ++i) harness.Add(MakeRequest("long" + std::to_string(i), 40, 1, 50 * i));
  harness.Step();
  const EngineRequest brief = MakeRequest("short", 2, 3, 7);
  harness.Add(brief);
  for (int i = 0; i < 4; ++i) harness.Step();
  EXPECT_EQ(harness.answers["short"].first_token_step, 2);
  harness.RunToEnd();
  ExpectExact(harness, {brief});
}

TEST_P(FairnessTest, AShorterPromptDoesNotOvertakeAMoreUrgentOne) {
  SchedulerOptions options = Options();
  options.policy = SchedulingPolicy::kPriority;
  Harness harness(options, depth());
  harness.Add(WithPriority(MakeRequest("urgent", 160, 1), 0));
  harness.Add(WithPriority(MakeRequest("next", 160, 1, 200), 0));
  harness.Step();
  harness.Run(WithPriority(MakeRequest("shorter", 20, 1, 700), 1));
  EXPECT_EQ(harness.answers["urgent"].first_token_step, 10);
  EXPECT_GE(harness.answers["shorter"].first_token_step, harness.answers["next"].first_token_step);
}

// The blocks that the sequence had computed are in the prefix cache still, but for the blocks that other
// sequences took.
TEST_P(FairnessTest, WhoWasPreemptedFindsItsBlocksAgain) {
  SchedulerOptions options = Options();
  options.policy = SchedulingPolicy::kPriority;
  options.max_num_seqs = 1;
  options.preemption = PreemptionMode::kRecompute;
  Harness harness(options, depth());
  const EngineRequest low = WithPriority(MakeRequest("low", 160, 30), 2);
  const EngineRequest urgent = WithPriority(MakeRequest("urgent", 8, 4, 500), 0);
  harness.Add(low);
  for (int i = 0; i < 15; ++i) harness.Step();
  harness.Run(urgent);
  EXPECT_EQ(harness.scheduler.stats().num_preemptions(), 1);
  const int64_t once = 160 + 29 + 8 + 3;
  EXPECT_LE(harness.worker.num_computed_tokens(), once + 4 + 2 * static_cast<int64_t>(depth()))
      << "a block that was not full, and steps in flight";
  ExpectExact(harness, {low, urgent});
}

TEST_P(FairnessTest, DecodesComeBeforeAnEarlierPrompt) {
  SchedulerOptions options = Options(/*num_blocks=*/13);  // 48 tokens
  options.max_num_batched_tokens = 4;
  options.long_prefill_token_threshold = 4;
  Harness harness(options, depth());
  // "first" is not preempted; its prompt of 10 steps does not stop the other's output.
  harness.Add(MakeRequest("decodes", 3, 8, 100));
  harness.Step();
  harness.Run(MakeRequest("prompt", 30, 2));
  for (int64_t step = 2; step <= 8; ++step) EXPECT_EQ(TokensOf(harness, step)[0], 1) << step;
  EXPECT_EQ(TokensOf(harness, 2), (std::vector<int32_t>{1, 3}));
}

// The second long prompt waits for the first; the short prompt behind does not.
TEST_P(FairnessTest, LongPromptsAreComputedOneAfterAnother) {
  for (const int32_t max_long : {1, 2}) {
    SchedulerOptions options = Options();
    options.max_long_partial_prefills = max_long;
    options.max_num_partial_prefills = 2;
    Harness harness(options, depth());
    const std::vector<EngineRequest> requests = {
        MakeRequest("first", 60, 2), MakeRequest("second", 60, 2, 200), MakeRequest("short", 5, 2, 500)};
    for (const EngineRequest& request : requests) harness.Add(request);
    harness.RunToEnd();
    if (max_long == 1) {
      EXPECT_EQ(TokensOf(harness, 1), (std::vector<int32_t>{11, 5}));
      EXPECT_EQ(harness.answers["short"].first_token_step, 1);
      EXPECT_LT(harness.answers["first"].first_token_step, harness.answers["second"].first_token_step);
    } else {
      EXPECT_EQ(TokensOf(harness, 1), (std::vector<int32_t>{8, 8}));
      EXPECT_EQ(harness.answers["first"].first_token_step, harness.answers["second"].first_token_step);
    }
    ExpectExact(harness, requests);
  }
}

// The first prompt takes 16 and 10 tokens; the second prompt gets the rest of the second step.
TEST_P(FairnessTest, APromptThatIsCompletedMakesRoomForTheNextLongOne) {
  Harness harness(Options(), depth());
  harness.Run(MakeRequest("first", 26, 2), MakeRequest("second", 40, 2, 200));
  EXPECT_EQ(TokensOf(harness, 1), std::vector<int32_t>{16});
  EXPECT_EQ(TokensOf(harness, 2), (std::vector<int32_t>{10, 6}));
}

// Only the first is long, and the first step completes neither of the first two.
TEST_P(FairnessTest, PartialPromptsAreBounded) {
  for (const int32_t max_partial : {1, 2}) {
    SchedulerOptions options = Options();
    options.max_num_partial_prefills = max_partial;
    options.long_prefill_token_threshold = 12;
    Harness harness(options, depth());
    const std::vector<EngineRequest> requests = {MakeRequest("long", 40, 2), MakeRequest("b", 9, 2, 200),
                                                 MakeRequest("c", 3, 2, 500)};
    for (const EngineRequest& request : requests) harness.Add(request);
    harness.Step();
    // The long prompt gets 12 tokens; 4 are left, which do not complete b.
    EXPECT_EQ(TokensOf(harness, 1),
              max_partial == 1 ? std::vector<int32_t>{16} : (std::vector<int32_t>{12, 4}));
    harness.RunToEnd();
    ExpectExact(harness, requests);
  }
}

// A prompt counts as long by the tokens that the cache lacks.
TEST_P(FairnessTest, APromptCountsWithWhatTheCacheLacks) {
  Harness harness(Options(), depth());
  harness.Run(MakeRequest("warm", 60, 1, 200));
  harness.Add(MakeRequest("long", 80, 1), MakeRequest("cached", 62, 1, 200));
  const int64_t next = static_cast<int64_t>(harness.steps.size()) + 1;
  harness.RunToEnd();
  EXPECT_EQ(harness.answers["cached"].num_cached, 60);
  EXPECT_EQ(harness.answers["cached"].first_token_step, next);
}

TEST_P(FairnessTest, ABlockedHeadIsHashedOnce) {
  Harness harness(Options(/*num_blocks=*/21), depth());  // 80 tokens
  harness.Run(MakeRequest("warm", 24, 1, 200));
  harness.Add(MakeRequest("runs", 4, 50));
  harness.Step();
  // 24 tokens of "blocked" are in the cache; there are too few blocks for the rest until "runs" ends.
  EngineRequest blocked = MakeRequest("blocked", 78, 1, 200);
  harness.Add(blocked);
  harness.Step();
  const auto hashed_by_others = [&](int64_t num_outputs) { return (4 + num_outputs) / 4; };
  const int64_t at_first = harness.scheduler.blocks().cache().num_blocks_hashed();
  for (int i = 0; i < 20; ++i) harness.Step();
  EXPECT_EQ(harness.scheduler.num_waiting(), 1);
  const int64_t outputs = static_cast<int64_t>(harness.answers["runs"].tokens.size());
  EXPECT_LE(harness.scheduler.blocks().cache().num_blocks_hashed() - at_first, hashed_by_others(outputs));
  harness.RunToEnd();
  ExpectExact(harness, {blocked});
}

SchedulerOptions PriorityOptions(int32_t num_blocks = 400) {
  SchedulerOptions options = Options(num_blocks);
  options.policy = SchedulingPolicy::kPriority;
  options.priority_aging_steps = 0;
  return options;
}

TEST_P(FairnessTest, AnUrgentRequestDisplacesTheLeastUrgentForItsSlot) {
  SchedulerOptions options = PriorityOptions();
  options.max_num_seqs = 2;
  Harness harness(options, depth());
  const std::vector<EngineRequest> requests = {WithPriority(MakeRequest("low", 4, 12), 5),
                                               WithPriority(MakeRequest("lowest", 4, 12, 100), 6),
                                               WithPriority(MakeRequest("urgent", 4, 3, 200), 0)};
  harness.Add(requests[0], requests[1]);
  for (int i = 0; i < 3; ++i) harness.Step();
  harness.Run(requests[2]);
  EXPECT_EQ(harness.answers["urgent"].first_token_step, 4);
  EXPECT_EQ(harness.scheduler.stats().num_preemptions(), 1);
  ASSERT_EQ(harness.steps[3].freed_slots_size(), 1);
  EXPECT_EQ(harness.steps[3].freed_slots(0), harness.steps[0].sequences(1).slot());
  ExpectExact(harness, requests);
}

TEST_P(FairnessTest, NobodyIsDisplacedByAnEqual) {
  for (const SchedulingPolicy policy : {SchedulingPolicy::kFcfs, SchedulingPolicy::kPriority}) {
    SchedulerOptions options = PriorityOptions();
    options.policy = policy;
    options.max_num_seqs = 1;
    Harness harness(options, depth());
    const int32_t other = policy == SchedulingPolicy::kFcfs ? -5 : 5;
    const std::vector<EngineRequest> requests = {WithPriority(MakeRequest("first", 4, 12), 5),
                                                 WithPriority(MakeRequest("second", 4, 3, 200), other)};
    harness.Add(requests[0]);
    harness.Step();
    harness.Run(requests[1]);
    EXPECT_EQ(harness.scheduler.stats().num_preemptions(), 0);
    EXPECT_GT(harness.answers["second"].first_token_step, 12);
    ExpectExact(harness, requests);
  }
}

// There are 20 blocks: two less urgent sequences and an equally urgent one have 5 each, and 5 are free.
TEST_P(FairnessTest, BlocksAreTakenFromTheLeastUrgentAndOnlyWhenTheySuffice) {
  for (const int32_t prompt_len : {30, 50, 70}) {
    SCOPED_TRACE(prompt_len);
    SchedulerOptions options = PriorityOptions(/*num_blocks=*/21);
    options.max_num_batched_tokens = 64;
    Harness harness(options, depth());
    const std::vector<EngineRequest> running = {WithPriority(MakeRequest("equal", 18, 3), 0),
                                                WithPriority(MakeRequest("low", 18, 3, 100), 5),
                                                WithPriority(MakeRequest("lowest", 18, 3, 200), 6)};
    for (const EngineRequest& request : running) harness.Add(request);
    harness.Step();
    ASSERT_EQ(harness.scheduler.num_running(), 3);
    const EngineRequest urgent = WithPriority(MakeRequest("urgent", prompt_len, 1, 500), 0);
    harness.Add(urgent);
    harness.Step();
    // 8, 13 and 18 blocks: preempting one suffices, both suffice, or both do not suffice.
    EXPECT_EQ(harness.scheduler.stats().num_preemptions(), prompt_len == 30 ? 1 : prompt_len == 50 ? 2 : 0);
    harness.RunToEnd();
    ExpectExact(harness, running);
    ExpectExact(harness, {urgent});
  }
}

// "low" is displaced and waits until "low" is more urgent than "urgent", which "low" must not displace in
// turn.
TEST_P(FairnessTest, WhatWaitingGainsDisplacesNobody) {
  SchedulerOptions options = PriorityOptions();
  options.max_num_seqs = 1;
  options.priority_aging_steps = 3;
  Harness harness(options, depth());
  const std::vector<EngineRequest> requests = {WithPriority(MakeRequest("low", 4, 12), 1),
                                               WithPriority(MakeRequest("urgent", 4, 30, 200), 0)};
  harness.Add(requests[0]);
  harness.Step();
  harness.Run(requests[1]);
  EXPECT_EQ(harness.answers["urgent"].first_token_step, 2);
  EXPECT_EQ(harness.scheduler.stats().num_preemptions(), 1);
  ExpectExact(harness, requests);
}

// There is one slot, and an urgent request of three steps comes whenever the last urgent request has ended.
TEST_P(FairnessTest, NobodyStarves) {
  for (const int32_t aging : {0, 4}) {
    SCOPED_TRACE(aging);
    SchedulerOptions options = PriorityOptions();
    options.max_num_seqs = 1;
    options.priority_aging_steps = aging;
    Harness harness(options, depth());
    const EngineRequest low = WithPriority(MakeRequest("low", 4, 10), 2);
    harness.Add(WithPriority(MakeRequest("0", 4, 3, 100), 0), low);
    for (int i = 1; i <= 40; ++i) {
      harness.Add(WithPriority(MakeRequest(std::to_string(i), 4, 3, 100 * (i % 8 + 1)), 0));
      for (int step = 0; step < 3; ++step) harness.Step();
    }
    if (aging == 0) {
      EXPECT_EQ(harness.answers["low"].first_token_step, 0) << "strict priority";
    } else {
      // After twice four steps of waiting "low" is as urgent as the rest and came earlier; a running "low" is
      // not displaced.
      EXPECT_GT(harness.answers["low"].first_token_step, 8);
      EXPECT_LE(harness.answers["low"].first_token_step, 8 + 3 + 2);
      EXPECT_EQ(harness.answers["low"].tokens, Reference(low));
      EXPECT_EQ(harness.scheduler.stats().num_preemptions(), 0);
    }
    harness.RunToEnd();
    EXPECT_EQ(harness.answers["low"].tokens, Reference(low));
  }
}

}  // namespace
}  // namespace somnus
