// Each decision of the scheduler is told once, with the step of the decision.

#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "coordinator/scheduler/worker_drafts.h"
#include "tests/engine/engine_test_util.h"

namespace somnus {
namespace {

struct Traced {
  std::vector<StepEvent> steps;
  EngineStats stats;
};

// Serves so many requests, which come while the first step is under way.
Traced Serve(const EngineOptions& options, int num_requests) {
  FakeExecutor executor(SmallWorker(options));
  RecordingObserver observer;
  EngineLoop engine(options, &executor, &observer);
  executor.Hold(true);
  std::vector<Ticket> tickets;
  for (int i = 0; i < num_requests; ++i) {
    tickets.push_back(MakeTicket(std::to_string(i), 12, 60, 100 * i));
    EXPECT_TRUE(engine.Submit(tickets.back().request).ok());
  }
  executor.Hold(false);
  for (const Ticket& ticket : tickets) {
    EXPECT_TRUE(ticket.sink->Wait());
    EXPECT_EQ(ticket.sink->tokens(), Reference(ticket));
  }
  engine.DrainAndStop(absl::Minutes(1));
  return {observer.steps(), engine.Stats()};
}

template <size_t n>
int64_t Sum(const std::array<int32_t, n>& counts) {
  return std::accumulate(counts.begin(), counts.end(), int64_t{0});
}

class EngineTraceTest : public ::testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(AsyncOffAndOn, EngineTraceTest, ::testing::Bool());

TEST_P(EngineTraceTest, WhatThePrefixCacheHadOfAPrompt) {
  const EngineOptions options = SmallEngine(GetParam());
  FakeExecutor executor(SmallWorker(options));
  RecordingObserver observer;
  EngineLoop engine(options, &executor, &observer);
  for (const char* id : {"a", "b"}) {
    const Ticket ticket = MakeTicket(id, 10, 5);
    ASSERT_TRUE(engine.Submit(ticket.request).ok());
    ASSERT_TRUE(ticket.sink->Wait());
  }
  engine.DrainAndStop(absl::Minutes(1));
  std::vector<StepEvent> first_steps;
  for (const StepEvent& step : observer.steps()) {
    if (step.num_new > 0) {
      first_steps.push_back(step);
    } else {
      EXPECT_EQ(step.num_cached_tokens, 0);
    }
  }
  ASSERT_EQ(first_steps.size(), 2u);
  EXPECT_EQ(first_steps[0].num_cached_tokens, 0);
  EXPECT_EQ(first_steps[1].num_cached_tokens, 8) << "two blocks of four";
  EXPECT_EQ(first_steps[1].num_tokens, 2);
}

TEST_P(EngineTraceTest, WhoWasSwappedOut) {
  const Traced traced = Serve(SwappingEngine(GetParam()), 4);
  int64_t by_swap = 0;
  for (const StepEvent& step : traced.steps) {
    by_swap += step.preempted_by_swap[static_cast<size_t>(PreemptionCause::kNoBlocks)];
    EXPECT_EQ(Sum(step.preempted_by_swap) > 0, step.num_swap_outs > 0);
    EXPECT_EQ(Sum(step.preempted_by_recompute), 0);
    EXPECT_EQ(step.swap_obstacles[static_cast<size_t>(SwapObstacle::kNone)], Sum(step.preempted_by_swap));
    EXPECT_EQ(Sum(step.swap_obstacles), Sum(step.preempted_by_swap));
  }
  EXPECT_GT(by_swap, 0);
  EXPECT_EQ(by_swap, traced.stats.preemptions.total());
}

TEST_P(EngineTraceTest, WhoIsComputedAgainAndWhyNothingWasSwapped) {
  EngineOptions options = SwappingEngine(GetParam());
  options.scheduler.blocks.num_host_blocks = 1;
  const Traced traced = Serve(options, 4);
  int64_t by_recompute = 0;
  for (const StepEvent& step : traced.steps) {
    by_recompute += step.preempted_by_recompute[static_cast<size_t>(PreemptionCause::kNoBlocks)];
    EXPECT_EQ(step.swap_obstacles[static_cast<size_t>(SwapObstacle::kHostFull)],
              Sum(step.preempted_by_recompute));
    EXPECT_EQ(Sum(step.preempted_by_swap), 0);
  }
  EXPECT_GT(by_recompute, 0);
  EXPECT_EQ(by_recompute, traced.stats.preemptions.total());
}

TEST_P(EngineTraceTest, WhoWaitsBecauseOfTheWatermark) {
  EngineOptions options = SwappingEngine(GetParam());
  options.scheduler.blocks.watermark = 0.9;  // nobody is admitted beside a running request
  const Traced traced = Serve(options, 2);
  int64_t refusals = 0;
  for (const StepEvent& step : traced.steps) {
    refusals += step.num_watermark_refusals;
    EXPECT_LE(step.num_running, 1);
  }
  EXPECT_GT(refusals, 0);
  EXPECT_EQ(refusals, traced.stats.watermark_refusals);
}

// Each step gives one token, and the tokens that were guessed rightly.
TEST(EngineDraftTraceTest, WhichDraftsWereRight) {
  EngineOptions options = SmallEngine(/*async_scheduling=*/false);
  options.scheduler.speculation.num_speculative_tokens = 4;
  options.scheduler.speculation.asks_workers = true;
  options.scheduler.speculation.must_pay = false;
  options.scheduler.speculation.make_drafter = [] { return std::make_unique<WorkerDrafts>(); };
  FakeWorkerOptions worker = SmallWorker(options);
  worker.max_proposals = 4;
  worker.wrong_period = 7;
  FakeExecutor executor(worker);
  RecordingObserver observer;
  EngineLoop engine(options, &executor, &observer);
  const Ticket ticket = MakeTicket("a", 10, 60);
  ASSERT_TRUE(engine.Submit(ticket.request).ok());
  ASSERT_TRUE(ticket.sink->Wait());
  EXPECT_EQ(ticket.sink->tokens(), Reference(ticket));
  engine.DrainAndStop(absl::Minutes(1));
  int32_t drafted = 0, accepted = 0, computing = 0;
  for (const StepEvent& step : observer.steps()) {
    EXPECT_LE(step.num_accepted_tokens, step.num_draft_tokens);
    drafted += step.num_draft_tokens;
    accepted += step.num_accepted_tokens;
    computing += step.num_tokens > 0 ? 1 : 0;
  }
  EXPECT_GT(accepted, 0);
  EXPECT_LT(accepted, drafted);
  EXPECT_EQ(computing + accepted, ticket.request.max_tokens);
}

}  // namespace
}  // namespace somnus
