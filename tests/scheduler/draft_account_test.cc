// Drafts must pay, in the time of steps that take as long as a test says.

#include "coordinator/scheduler/draft_account.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/scheduler/fake_drafter.h"
#include "tests/scheduler/scheduler_harness.h"

namespace somnus {
namespace {

TEST(PlainStepTimesTest, IsKnownAfterAFewStepsAndMeasuredAgain) {
  PlainStepTimes times;
  for (int i = 0; i < PlainStepTimes::kFirst; ++i) {
    EXPECT_TRUE(times.Lacks(5));
    EXPECT_EQ(times.Seconds(5), 0);
    times.Observe(5, i == 0 ? 100 : 2);  // the first step captures graphs, and does not count
  }
  EXPECT_FALSE(times.Lacks(5));
  EXPECT_EQ(times.Seconds(5), 2);
  EXPECT_EQ(times.Seconds(7), 2);
  EXPECT_TRUE(times.Lacks(8));
  EXPECT_EQ(times.Seconds(8), 0);

  for (int i = 1; i < PlainStepTimes::kLife; ++i) times.NoteStepWithDrafts(5);
  EXPECT_FALSE(times.Lacks(5));
  times.NoteStepWithDrafts(5);
  for (int i = 0; i < PlainStepTimes::kRefresh; ++i) {
    EXPECT_TRUE(times.Lacks(5));
    times.Observe(5, 4);
  }
  EXPECT_FALSE(times.Lacks(5));
  EXPECT_GT(times.Seconds(5), 2);
  for (int i = 0; i < 200; ++i) times.Observe(5, 4);
  EXPECT_NEAR(times.Seconds(5), 4, 1e-3);
}

TEST(DraftAccountTest, WhatIsLongAgoCountsLess) {
  DraftAccount account;
  const auto judge = [&](double gain, double cost) {
    for (int i = 1; i < DraftAccount::kStepsToJudge; ++i)
      EXPECT_EQ(account.Note(gain, cost), DraftAccount::Verdict::kOpen);
    return account.Note(gain, cost);
  };
  EXPECT_EQ(judge(1, 5), DraftAccount::Verdict::kDoesNotPay);
  EXPECT_EQ(judge(2, 1), DraftAccount::Verdict::kDoesNotPay);
  EXPECT_EQ(judge(2, 1), DraftAccount::Verdict::kPays);
}

// In the time of a step without drafts.
struct Costs {
  double checked;   // token of a draft
  double proposed;  // token by the draft model
};

struct Load {
  double seconds = 0;
  int64_t num_drafts = 0;
};

// Runs `count` requests one by one.
Load RunAll(SpeculationOptions speculation, const Costs& costs, int count, int32_t max_tokens,
            int wrong_period = 0, size_t depth = 0) {
  SchedulerOptions options = WithDrafts(std::move(speculation), /*num_blocks=*/1024);
  options.max_model_len = 3000;
  Harness harness(options, depth, /*nan_token=*/-1, wrong_period);
  Load load;
  harness.step_seconds = [&](const v1::StepRequest& step) {
    double seconds = step.sequences_size() > 0 ? 1 : 0;
    int32_t num_passes = 0;
    for (const v1::ScheduledSequence& sequence : step.sequences()) {
      seconds += costs.checked * sequence.num_draft_tokens();
      num_passes = std::max(num_passes, sequence.num_proposals());
    }
    seconds += costs.proposed * num_passes;
    load.seconds += seconds;
    return seconds;
  };
  for (int i = 0; i < count; ++i) {
    const EngineRequest request = MakeRequest(std::to_string(i), 9, max_tokens, 10 * i);
    harness.Run(request);
    EXPECT_EQ(harness.answers[request.id].tokens, Reference(request));
  }
  load.num_drafts = harness.scheduler.speculation().num_drafts;
  return load;
}

SpeculationOptions Always(SpeculationOptions options) {
  options.must_pay = false;
  return options;
}

// Every guess is right, and a draft takes longer than the steps that are saved.
TEST(DraftsMustPayTest, ADraftModelThatIsTooSlowCostsLittle) {
  const Costs costs = {.checked = 0.2, .proposed = 1};
  for (size_t depth : {0u, 1u}) {
    const double without = RunAll(FakeDrafts(0), costs, 40, 200, 0, depth).seconds;
    EXPECT_GT(RunAll(Always(WorkersDrafts(4)), costs, 40, 200, 0, depth).seconds, 1.1 * without);
    const Load with = RunAll(WorkersDrafts(4), costs, 40, 200, 0, depth);
    EXPECT_LT(with.seconds, 1.02 * without) << depth;
    EXPECT_GT(with.num_drafts, 0);
  }
}

TEST(DraftsMustPayTest, OneThatIsOftenWrongCostsLittle) {
  const Costs costs = {.checked = 0.1, .proposed = 0.9};
  const double without = RunAll(FakeDrafts(0), costs, 40, 200).seconds;
  EXPECT_GT(RunAll(Always(WorkersDrafts(4)), costs, 40, 200, 3).seconds, 1.05 * without);
  EXPECT_LT(RunAll(WorkersDrafts(4), costs, 40, 200, 3).seconds, 1.02 * without);
}

TEST(DraftsMustPayTest, ALongAnswerTriesAgainEverMoreRarely) {
  const Costs costs = {.checked = 0.2, .proposed = 1};
  const double without = RunAll(FakeDrafts(0), costs, 1, 2900).seconds;
  const Load with = RunAll(WorkersDrafts(4), costs, 1, 2900);
  EXPECT_LT(with.seconds, 1.02 * without);
  EXPECT_GT(with.num_drafts, 10);
}

TEST(DraftsMustPayTest, WhereTheyPayTheyGoOn) {
  const Costs costs = {.checked = 0.02, .proposed = 0.1};
  for (size_t depth : {0u, 1u}) {
    const double always = RunAll(Always(WorkersDrafts(4)), costs, 4, 1000, 0, depth).seconds;
    const double with = RunAll(WorkersDrafts(4), costs, 4, 1000, 0, depth).seconds;
    EXPECT_LT(with, 1.05 * always) << depth;
    EXPECT_LT(with, 0.4 * 4000);
  }
}

// By prompt lookup guesses cost nothing, but their check does.
TEST(DraftsMustPayTest, ChecksMayCostMoreThanTheySave) {
  const Costs costs = {.checked = 1.2, .proposed = 0};
  const double without = RunAll(FakeDrafts(0), costs, 1, 2900).seconds;
  EXPECT_GT(RunAll(Always(FakeDrafts(4)), costs, 1, 2900).seconds, 1.1 * without);
  EXPECT_LT(RunAll(FakeDrafts(4), costs, 1, 2900).seconds, 1.02 * without);
}

// Steps become slower with time, with drafts and without: the times of the first steps are no measure then.
TEST(DraftsMustPayTest, StepsWithoutAreMeasuredAgain) {
  SchedulerOptions options = WithDrafts(WorkersDrafts(4), /*num_blocks=*/2048);
  options.max_model_len = 6000;
  Harness harness(options);
  int num_steps = 0, num_late_drafts = 0;
  harness.step_seconds = [&](const v1::StepRequest& step) {
    num_late_drafts += ++num_steps > 1000 && DraftTokens(step) > 0;
    int32_t num_proposals = 0;
    for (const v1::ScheduledSequence& sequence : step.sequences()) num_proposals += sequence.num_proposals();
    return (1 + 0.1 * num_proposals) * (1 + 0.002 * num_steps);
  };
  const EngineRequest request = MakeRequest("a", 9, 5500);
  harness.Run(request);
  EXPECT_EQ(harness.answers["a"].tokens, Reference(request));
  EXPECT_GT(num_late_drafts, 0.9 * (num_steps - 1000));
}

}  // namespace
}  // namespace somnus
