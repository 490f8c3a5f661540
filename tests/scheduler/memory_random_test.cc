// Random loads with little memory on both sides: sequences are preempted in every way, pins come and go, and
// sleeps, losses, refusals and aborts disturb them. Every token is the reference's.

#include <gtest/gtest.h>

#include "tests/scheduler/scheduler_harness.h"

namespace somnus {
namespace {

struct RandomRun {
  RandomRun(uint32_t seed, size_t depth) : random(seed), harness(Options(), depth) {}

  SchedulerOptions Options() {
    SchedulerOptions options = SmallOptions(15 + Below(24));
    options.blocks.num_host_blocks = Below(40);
    options.policy = Below(2) == 0 ? SchedulingPolicy::kPriority : SchedulingPolicy::kFcfs;
    options.preemption = static_cast<PreemptionMode>(Below(3));
    options.blocks.watermark = Below(2) * 0.05;
    options.blocks.enable_prefix_caching = Below(3) != 0;
    options.max_num_batched_tokens = 8 + Below(40);
    options.host_prefix_caching = static_cast<HostPrefixCaching>(Below(3));
    options.max_step_stores = 1 + Below(8);
    return options;
  }
  int32_t Below(int32_t bound) { return static_cast<int32_t>(random() % static_cast<uint32_t>(bound)); }

  void Arrive(int i) {
    EngineRequest request = RandomRequest(std::to_string(i), &random);
    if (Below(6) == 0) OwnSampling(&request)->num_prompt_logprobs = 0;
    const int num_choices = Below(4) == 0 ? 1 + Below(5) : 1;
    for (int choice = 0; choice < num_choices; ++choice) {
      requests[request.id] = request;
      harness.Add(request);
      request.fork_of = std::to_string(i);
      request.id = request.fork_of + "." + std::to_string(choice);
    }
  }
  void ChangePins(int i) {
    if (pins.size() < 4 && Below(2) == 0) {
      pins.push_back(std::to_string(i));
      const EngineRequest prompt = MakeRequest("", 4 * (1 + Below(6)), 0, 100 * Below(3));
      harness.scheduler.Pin({pins.back(), prompt.prompt, ""});
    } else if (!pins.empty()) {
      const auto pin = pins.begin() + Below(static_cast<int32_t>(pins.size()));
      harness.scheduler.Unpin(*pin);
      pins.erase(pin);
    }
  }
  void Disturb() {
    harness.worker.RefuseSwaps(Below(200) == 0);
    if (Below(100) == 0) harness.scheduler.ResetPrefixCache();
    harness.scheduler.SetPrices({.seconds_per_token = 1, .seconds_per_block = 4.0 * Below(2)});
    if (Below(40) == 0 && !requests.empty()) {
      auto it = requests.begin();
      std::advance(it, Below(static_cast<int32_t>(requests.size())));
      if (harness.scheduler.Abort(it->first) != nullptr) requests.erase(it);
    } else if (Below(30) == 0) {
      harness.SleepKeeping();
      if (Below(5) == 0) harness.scheduler.ForgetComputed();  // level 2
      if (Below(8) == 0) harness.Lose();
      harness.WakeKeeping();
    } else if (Below(40) == 0) {
      harness.Suspend();  // for a sleep that does not happen
      harness.scheduler.kept().Choose();
      harness.scheduler.kept().Abandon();
    } else if (Below(40) == 0) {
      harness.Lose();
    }
  }

  std::mt19937 random;
  Harness harness;
  std::map<std::string, EngineRequest> requests;
  std::vector<std::string> pins;
};

class MemoryRandomTest : public testing::TestWithParam<size_t> {};
INSTANTIATE_TEST_SUITE_P(Depths, MemoryRandomTest, testing::Values(0, 1));

TEST_P(MemoryRandomTest, LoadsHaveExactTokensAndAlwaysEnd) {
  int64_t num_swaps = 0, num_swapped_tokens = 0, num_host_hits = 0, recomputed = 0, held = 0;
  PinReleases releases;
  for (uint32_t seed = 1; seed <= 400; ++seed) {
    RandomRun run(seed, GetParam());
    for (int i = 0; i < 200; ++i) {
      if (run.Below(4) == 0) run.Arrive(i);
      if (seed % 2 == 0 && run.Below(8) == 0) run.ChangePins(i);
      run.Disturb();
      run.harness.Step();
      ASSERT_FALSE(HasFatalFailure()) << "seed " << seed << " step " << i;
      held += run.harness.scheduler.blocks().pins().num_blocks();
    }
    run.harness.worker.RefuseSwaps(false);
    run.harness.RunToEnd();
    ASSERT_FALSE(HasFatalFailure()) << "seed " << seed;
    const Scheduler& scheduler = run.harness.scheduler;
    EXPECT_FALSE(scheduler.has_sequences()) << "seed " << seed;
    EXPECT_EQ(scheduler.blocks().pool().num_used(), scheduler.blocks().pins().num_blocks());
    EXPECT_EQ(scheduler.blocks().host().pool().num_used(), scheduler.blocks().host().cache().size());
    for (const auto& [id, request] : run.requests)
      ASSERT_EQ(run.harness.answers[id].tokens, Reference(request)) << "seed " << seed << " request " << id;
    for (const v1::StepRequest& step : run.harness.steps)
      ASSERT_TRUE(step.swap_outs().empty() || step.swap_ins().empty());
    num_swaps += run.harness.worker.num_swapped_in();
    num_swapped_tokens += scheduler.stats().swaps.in_tokens;
    num_host_hits += scheduler.stats().swaps.host_hit_tokens;
    recomputed += scheduler.stats().preemptions.by_recompute[0];
    releases.Add(scheduler.blocks().pins().releases());
  }
  EXPECT_GT(num_swaps, 3000);
  EXPECT_GT(num_swapped_tokens, 10'000);
  EXPECT_GT(num_host_hits, 1000);
  EXPECT_GT(recomputed, 1000);
  EXPECT_GT(held, 20'000);
  EXPECT_GT(releases.no_blocks, 5);
  EXPECT_GT(releases.forgotten, 100);
}

}  // namespace
}  // namespace somnus
