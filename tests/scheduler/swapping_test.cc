// Preemption by swap: computed blocks wait in host memory, and are computed once.

#include <gtest/gtest.h>

#include "proto/limits.h"
#include "tests/scheduler/scheduler_harness.h"

namespace somnus {
namespace {

SchedulerOptions SwappingOptions(int32_t num_blocks, int32_t num_host_blocks = 64) {
  SchedulerOptions options = SmallOptions(num_blocks);
  options.preemption = PreemptionMode::kSwap;
  options.blocks.num_host_blocks = num_host_blocks;
  return options;
}

int64_t NumSwapOuts(const Harness& harness) {
  int64_t count = 0;
  for (const v1::StepRequest& step : harness.steps) count += step.swap_outs_size();
  return count;
}

int64_t Obstacles(const SchedulerStats& stats, SwapObstacle reason) {
  return stats.swaps.obstacles[static_cast<size_t>(reason)];
}

class SwappingTest : public testing::TestWithParam<size_t> {
 protected:
  size_t depth() const { return GetParam(); }
};
INSTANTIATE_TEST_SUITE_P(Depths, SwappingTest, testing::Values(0, 1));

TEST_P(SwappingTest, NothingIsComputedTwice) {
  SchedulerOptions options = SwappingOptions(13);
  options.blocks.enable_prefix_caching = false;
  Harness harness(options, depth());
  std::map<std::string, EngineRequest> requests;
  for (int i = 0; i < 3; ++i) {
    const EngineRequest request = MakeRequest(std::to_string(i), 10, 20, 100 * i);
    requests[request.id] = request;
    harness.Add(request);
  }
  harness.RunToEnd();
  ASSERT_FALSE(HasFatalFailure());
  int64_t tokens = 0;
  for (const auto& [id, request] : requests) {
    EXPECT_EQ(harness.answers[id].tokens, Reference(request));
    tokens += static_cast<int64_t>(request.prompt.size()) + request.max_tokens - 1;
  }
  const SchedulerStats& stats = harness.scheduler.stats();
  EXPECT_GT(stats.preemptions.by_swap[static_cast<size_t>(PreemptionCause::kNoBlocks)], 0);
  EXPECT_EQ(stats.num_preemptions(), stats.preemptions.by_swap[0]);
  EXPECT_LE(harness.worker.num_computed_tokens(), tokens + 3) << "but for stale tokens";
  EXPECT_EQ(stats.swaps.out_blocks, harness.worker.num_swapped_out());
  EXPECT_EQ(stats.swaps.in_blocks, harness.worker.num_swapped_in());
  EXPECT_EQ(stats.swaps.in_blocks, stats.swaps.out_blocks);
  EXPECT_GT(stats.swaps.in_tokens, 0);
  EXPECT_EQ(harness.scheduler.blocks().host().pool().num_used(), 0);
}

TEST_P(SwappingTest, WithoutHostBlocksItIsComputedAgain) {
  Harness harness(SwappingOptions(13, /*num_host_blocks=*/2), depth());
  const EngineRequest a = MakeRequest("a", 15, 20), b = MakeRequest("b", 15, 20, 100);
  harness.Run(a, b);
  EXPECT_EQ(harness.answers["a"].tokens, Reference(a));
  EXPECT_EQ(harness.answers["b"].tokens, Reference(b));
  const SchedulerStats& stats = harness.scheduler.stats();
  EXPECT_GT(stats.preemptions.by_recompute[0], 0);
  EXPECT_EQ(Obstacles(stats, SwapObstacle::kHostFull), stats.preemptions.by_recompute[0]);
  EXPECT_EQ(NumSwapOuts(harness), 0);
}

// Two sequences that do not fit together, on a host that refuses to swap, are computed again.
void RunRefused(Harness* harness, absl::StatusCode code) {
  harness->worker.RefuseSwaps(true, code);
  const EngineRequest a = MakeRequest("a", 15, 30), b = MakeRequest("b", 15, 30, 100);
  harness->Run(a, b);
  EXPECT_EQ(harness->answers["a"].tokens, Reference(a));
  EXPECT_EQ(harness->answers["b"].tokens, Reference(b));
  EXPECT_EQ(harness->scheduler.stats().swaps.refusals, 1);
  EXPECT_EQ(harness->scheduler.blocks().host().pool().num_used(), 0);
  harness->worker.RefuseSwaps(false);
}

// Two further such sequences run; the second is swapped out and in.
void RunSwapped(Harness* harness) {
  const EngineRequest d = MakeRequest("d", 15, 30, 100);
  harness->Run(MakeRequest("c", 15, 30), d);
  EXPECT_EQ(harness->answers["d"].tokens, Reference(d));
  EXPECT_GT(harness->worker.num_swapped_in(), 0);
}

// A rank on a GPU takes the memory beside steps, so that a later step finds the memory.
TEST_P(SwappingTest, AHostThatIsTakingTheMemoryIsAskedAgainSoon) {
  Harness harness(SwappingOptions(13), depth());
  RunRefused(&harness, absl::StatusCode::kUnavailable);
  ASSERT_FALSE(HasFatalFailure());
  harness.Run(MakeRequest("long", 1, 40, 1000));
  RunSwapped(&harness);
}

TEST_P(SwappingTest, AHostWithoutMemoryMakesThemRecomputedAndIsAskedAgainLater) {
  Harness harness(SwappingOptions(13), depth());
  RunRefused(&harness, absl::StatusCode::kResourceExhausted);
  ASSERT_FALSE(HasFatalFailure());
  for (int i = 0; i < 14; ++i) {
    harness.Run(MakeRequest("long" + std::to_string(i), 1, 40, 1000 + i));
  }
  RunSwapped(&harness);
  EXPECT_EQ(harness.scheduler.stats().swaps.refusals, 1);
}

TEST_P(SwappingTest, AnAbortedSequenceGivesItsHostBlocksBack) {
  Harness harness(SwappingOptions(13), depth());
  harness.Add(MakeRequest("a", 15, 30), MakeRequest("b", 15, 30, 100));
  while (harness.scheduler.num_swapped() == 0) ASSERT_TRUE(harness.Step());
  EXPECT_GT(harness.scheduler.blocks().host().pool().num_used(), 0);
  EXPECT_NE(harness.scheduler.Abort("b"), nullptr);
  harness.Check();
  EXPECT_EQ(harness.scheduler.num_swapped(), 0);
  EXPECT_EQ(harness.scheduler.blocks().host().pool().num_used(), 0);
  harness.RunToEnd();
  EXPECT_EQ(harness.answers["a"].tokens, Reference(MakeRequest("a", 15, 30)));
}

// A request that is not urgent has run for a while, and may be suspended, when an urgent request comes, for
// which there is no room. Returns the counts of preemptions.
PreemptionCounts Displace(Harness* harness, bool suspends) {
  EngineRequest patient = MakeRequest("patient", 20, 12);
  patient.priority = 5;
  harness->Add(patient);
  for (int i = 0; i < 5; ++i) harness->Step();
  if (suspends) harness->Suspend();
  const EngineRequest urgent = MakeRequest("urgent", 30, 5, 100);
  harness->Run(urgent);
  EXPECT_EQ(harness->answers["patient"].tokens, Reference(patient));
  EXPECT_EQ(harness->answers["urgent"].tokens, Reference(urgent));
  return harness->scheduler.stats().preemptions;
}

SchedulerOptions ByPriority() {
  SchedulerOptions options = SwappingOptions(13);
  options.policy = SchedulingPolicy::kPriority;
  return options;
}

TEST_P(SwappingTest, AnUrgentSequenceSwapsOthersOut) {
  Harness harness(ByPriority(), depth());
  const PreemptionCounts preemptions = Displace(&harness, /*suspends=*/false);
  EXPECT_EQ(preemptions.by_swap[static_cast<size_t>(PreemptionCause::kPriority)], 1);
  EXPECT_LT(harness.answers["urgent"].first_token_step, harness.steps.back().step_id());
}

TEST_P(SwappingTest, ASuspendedSequenceIsSwappedOutAsARunningOneIs) {
  Harness harness(ByPriority(), depth());
  const PreemptionCounts preemptions = Displace(&harness, /*suspends=*/true);
  ASSERT_FALSE(HasFatalFailure());
  EXPECT_EQ(preemptions.by_swap[static_cast<size_t>(PreemptionCause::kNoBlocks)], 1);
  EXPECT_EQ(preemptions.by_recompute, decltype(PreemptionCounts::by_recompute)());
}

TEST_P(SwappingTest, PricesDecideWhereTheOptionsDoNot) {
  for (const bool swap_is_cheap : {false, true}) {
    SchedulerOptions options = SwappingOptions(13);
    options.preemption = PreemptionMode::kAuto;
    Harness harness(options, depth());
    harness.scheduler.SetPrices({.seconds_per_token = 1, .seconds_per_block = swap_is_cheap ? 1.0 : 4.0});
    harness.Run(MakeRequest("a", 15, 20), MakeRequest("b", 15, 20, 100));
    const PreemptionCounts& preemptions = harness.scheduler.stats().preemptions;
    EXPECT_EQ(preemptions.by_swap[0] > 0, swap_is_cheap);
    EXPECT_EQ(preemptions.by_recompute[0] > 0, !swap_is_cheap);
    EXPECT_EQ(Obstacles(harness.scheduler.stats(), SwapObstacle::kPrice), preemptions.by_recompute[0]);
  }
}

TEST_P(SwappingTest, SwappedSequencesOutliveASleepThatKeepsBlocks) {
  Harness harness(SwappingOptions(13), depth());
  const EngineRequest a = MakeRequest("a", 15, 30), b = MakeRequest("b", 15, 30, 100);
  harness.Add(a, b);
  while (harness.scheduler.num_swapped() == 0) ASSERT_TRUE(harness.Step());
  harness.SleepKeeping();
  EXPECT_EQ(harness.scheduler.num_swapped(), 1);
  harness.WakeKeeping();
  harness.RunToEnd();
  ASSERT_FALSE(HasFatalFailure());
  EXPECT_EQ(harness.answers["a"].tokens, Reference(a));
  EXPECT_EQ(harness.answers["b"].tokens, Reference(b));
  EXPECT_GT(harness.worker.num_swapped_in(), 0);
  EXPECT_EQ(harness.scheduler.stats().preemptions.by_recompute, decltype(PreemptionCounts::by_recompute)());
}

TEST_P(SwappingTest, ALossOfTheWorkersForgetsWhatIsInHostMemory) {
  Harness harness(SwappingOptions(13), depth());
  const EngineRequest a = MakeRequest("a", 15, 30), b = MakeRequest("b", 15, 30, 100);
  harness.Add(a, b);
  while (harness.scheduler.num_swapped() == 0) ASSERT_TRUE(harness.Step());
  harness.Lose();
  EXPECT_EQ(harness.scheduler.num_swapped(), 0);
  EXPECT_EQ(harness.scheduler.blocks().host().pool().num_used(), 0);
  harness.RunToEnd();
  EXPECT_EQ(harness.answers["a"].tokens, Reference(a));
  EXPECT_EQ(harness.answers["b"].tokens, Reference(b));
}

TEST_P(SwappingTest, AReleasedSequenceLeavesNothingBehind) {
  Harness harness(SwappingOptions(13), depth());
  harness.Add(MakeRequest("a", 15, 30), MakeRequest("b", 15, 30, 100));
  while (harness.scheduler.num_swapped() == 0) ASSERT_TRUE(harness.Step());
  harness.Suspend();
  harness.scheduler.PreemptAll();
  EXPECT_EQ(harness.scheduler.num_swapped(), 1);
  EXPECT_EQ(harness.scheduler.ReleaseAll().size(), 2u);
  harness.Check();
  EXPECT_EQ(harness.scheduler.blocks().host().pool().num_used(), 0);
}

}  // namespace
}  // namespace somnus
