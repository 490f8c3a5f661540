// The prefix cache goes on in the host tier.

#include <gtest/gtest.h>

#include "tests/scheduler/scheduler_harness.h"

namespace somnus {
namespace {

SchedulerOptions Options(int32_t num_blocks = 1 + 16) {
  SchedulerOptions options = SmallOptions(num_blocks);
  options.host_prefix_caching = HostPrefixCaching::kOn;
  options.blocks.num_host_blocks = 64;
  return options;
}

// The tokens that are computed for a conversation and, between its turns, for other conversations.
void Complete(Harness* harness, const EngineRequest& request) {
  harness->Run(request);
  EXPECT_EQ(harness->answers.at(request.id).tokens, Reference(request)) << request.id;
}

void RunOthers(Harness* harness, int count, int32_t first) {
  for (int i = 0; i < count; ++i) {
    const int32_t number = first + i;
    Complete(harness, MakeRequest("other" + std::to_string(number), 30, 10, 1000 * number));
  }
}

int64_t Hits(const Harness& harness) { return harness.scheduler.stats().swaps.host_hit_tokens; }

class HostPrefixCacheTest : public testing::TestWithParam<size_t> {
 protected:
  size_t depth() const { return GetParam(); }
};
INSTANTIATE_TEST_SUITE_P(Depths, HostPrefixCacheTest, testing::Values(0, 1));

TEST_P(HostPrefixCacheTest, APrefixThatTheDeviceHasLostIsNotComputedAgain) {
  for (const auto caching : {HostPrefixCaching::kOff, HostPrefixCaching::kOn}) {
    SchedulerOptions options = Options();
    options.host_prefix_caching = caching;
    Harness harness(options, depth());
    Complete(&harness, MakeRequest("first", 33, 4));
    RunOthers(&harness, 4, 1);
    const int64_t computed = harness.worker.num_computed_tokens();
    Complete(&harness, MakeRequest("again", 33, 4));
    const bool is_on = caching == HostPrefixCaching::kOn;
    EXPECT_EQ(Hits(harness), is_on ? 32 : 0);
    // All prompts were looked up in host memory beyond the tokens on the device.
    const SchedulerStats& stats = harness.scheduler.stats();
    const int64_t on_device = stats.prefix_cache_hits - Hits(harness);
    EXPECT_EQ(stats.swaps.host_query_tokens, is_on ? stats.prompt_tokens - on_device : 0);
    EXPECT_EQ(harness.answers.at("again").num_cached, is_on ? 32 : 0);
    EXPECT_LE(harness.worker.num_computed_tokens() - computed, is_on ? 6 : 38);
    EXPECT_EQ(harness.worker.num_swapped_in(), is_on ? 8 : 0);
    EXPECT_EQ(harness.scheduler.stats().swaps.stored_blocks, harness.worker.num_swapped_out());
    EXPECT_EQ(harness.scheduler.blocks().host().pool().num_used(),
              harness.scheduler.blocks().host().cache().size());
  }
}

TEST_P(HostPrefixCacheTest, PricesDecide) {
  for (const bool is_cheap : {false, true}) {
    SchedulerOptions options = Options();
    options.host_prefix_caching = HostPrefixCaching::kAuto;
    Harness harness(options, depth());
    harness.scheduler.SetPrices({.seconds_per_token = 1, .seconds_per_block = is_cheap ? 1.0 : 4.0});
    Complete(&harness, MakeRequest("first", 33, 4));
    RunOthers(&harness, 4, 1);
    Complete(&harness, MakeRequest("again", 33, 4));
    EXPECT_EQ(Hits(harness) > 0, is_cheap);
    EXPECT_EQ(harness.scheduler.stats().swaps.stored_blocks > 0, is_cheap);
  }
}

TEST_P(HostPrefixCacheTest, AStepStoresNoMoreThanItMay) {
  SchedulerOptions options = Options();
  options.max_step_stores = 2;
  Harness harness(options, depth());
  RunOthers(&harness, 6, 1);
  for (const v1::StepRequest& step : harness.steps) {
    EXPECT_LE(step.swap_outs_size(), 2);
    EXPECT_TRUE(step.swap_outs().empty() || step.swap_ins().empty());
  }
  EXPECT_GT(harness.worker.num_swapped_out(), 10);
}

TEST_P(HostPrefixCacheTest, AHostWithoutMemoryHasNothing) {
  Harness harness(Options(), depth());
  harness.worker.RefuseSwaps(true);
  Complete(&harness, MakeRequest("first", 33, 4));
  RunOthers(&harness, 4, 1);
  EXPECT_EQ(harness.scheduler.stats().swaps.refusals, 1) << "it is not asked again soon";
  EXPECT_EQ(harness.scheduler.blocks().host().pool().num_used(), 0);
  Complete(&harness, MakeRequest("again", 33, 4));
  EXPECT_EQ(Hits(harness), 0);
}

TEST_P(HostPrefixCacheTest, ItOutlivesASleepThatKeepsBlocksAndNoOther) {
  for (const bool keeps : {false, true}) {
    Harness harness(Options(), depth());
    Complete(&harness, MakeRequest("first", 33, 4));
    RunOthers(&harness, 4, 1);
    harness.SleepKeeping();
    if (!keeps) harness.scheduler.ForgetComputed();
    EXPECT_EQ(harness.scheduler.blocks().host().cache().size() > 0, keeps);
    harness.WakeKeeping();
    Complete(&harness, MakeRequest("again", 33, 4));
    EXPECT_EQ(Hits(harness), keeps ? 32 : 0);
  }
}

TEST_P(HostPrefixCacheTest, ALossAndAResetForgetIt) {
  for (const bool loses : {false, true}) {
    Harness harness(Options(), depth());
    Complete(&harness, MakeRequest("first", 33, 4));
    RunOthers(&harness, 4, 1);
    if (loses) {
      harness.Lose();
    } else {
      harness.scheduler.ResetPrefixCache();
    }
    EXPECT_EQ(harness.scheduler.blocks().host().pool().num_used(), 0);
    Complete(&harness, MakeRequest("again", 33, 4));
    EXPECT_EQ(Hits(harness), 0);
  }
}

// Conversations that return after other conversations, some together, beside swapped sequences.
TEST_P(HostPrefixCacheTest, RandomTurnsHaveExactTokens) {
  int64_t hits = 0, swaps = 0, evictions = 0;
  for (uint32_t seed = 1; seed <= 60; ++seed) {
    std::mt19937 random(seed);
    const auto below = [&](uint32_t bound) { return static_cast<int32_t>(random() % bound); };
    SchedulerOptions options = Options(19 + below(20));
    options.preemption = below(2) == 0 ? PreemptionMode::kSwap : PreemptionMode::kRecompute;
    options.blocks.num_host_blocks = 5 + below(60);
    options.max_step_stores = 1 + below(16);
    options.policy = below(2) == 0 ? SchedulingPolicy::kFcfs : SchedulingPolicy::kPriority;
    Harness harness(options, depth());
    std::map<std::string, EngineRequest> requests;
    for (int i = 0; i < 300; ++i) {
      if (below(4) == 0) {
        EngineRequest request =
            MakeRequest(std::to_string(i), 20 + below(30), 1 + below(20), 200 * below(12));
        request.priority = below(3);
        const int num_choices = below(5) == 0 ? 1 + below(4) : 1;
        for (int choice = 0; choice < num_choices; ++choice) {
          requests[request.id] = request;
          harness.Add(request);
          request.fork_of = std::to_string(i);
          request.id = request.fork_of + "." + std::to_string(choice);
        }
      }
      harness.worker.RefuseSwaps(below(300) == 0);
      if (below(100) == 0) harness.Lose();
      if (below(60) == 0) {
        harness.SleepKeeping();
        harness.WakeKeeping();
      }
      harness.Step();
      ASSERT_FALSE(HasFatalFailure()) << "seed " << seed << " step " << i;
    }
    harness.worker.RefuseSwaps(false);
    harness.RunToEnd();
    for (const auto& [id, request] : requests)
      ASSERT_EQ(harness.answers[id].tokens, Reference(request)) << "seed " << seed << " request " << id;
    const BlockManager& blocks = harness.scheduler.blocks();
    EXPECT_EQ(blocks.host().pool().num_used(), blocks.host().cache().size());
    EXPECT_EQ(blocks.pool().num_used(), 0);
    hits += Hits(harness);
    swaps += harness.scheduler.stats().swaps.in_tokens;
    evictions += harness.scheduler.stats().swaps.evicted_blocks;
  }
  EXPECT_GT(hits, 5000);
  EXPECT_GT(swaps, 1000);
  EXPECT_GT(evictions, 1000);
}

}  // namespace
}  // namespace somnus
