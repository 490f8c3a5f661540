// Random groups among random requests, disturbed in every way that there is: exact answers at the end, and
// whatever the scheduler counts adds up after every step (Harness::Check).

#include <gtest/gtest.h>

#include <set>

#include "tests/scheduler/reference_beams.h"

namespace somnus {
namespace {

class RandomRun {
 public:
  RandomRun(uint32_t seed, const SchedulerOptions& options, size_t depth)
      : random_(seed), options_(options), harness_(options, depth) {}

  void Run(int num_requests) {
    int submitted = 0;
    for (int i = 0; i < 20000; ++i) {
      if (submitted < num_requests && Below(3) == 0) Submit(submitted++);
      if (Below(40) == 0) Disturb();
      if (!harness_.Step() && submitted == num_requests) break;
      if (::testing::Test::HasFatalFailure()) return;
    }
    for (const EngineRequest& request : requests_) {
      if (!aborted_.contains(request.id)) ExpectExactAnswer(request, harness_);
    }
    EXPECT_EQ(harness_.scheduler.blocks().pool().num_used(), 0);
    EXPECT_FALSE(harness_.scheduler.has_sequences());
  }

  const Harness& harness() const { return harness_; }

 private:
  int32_t Below(uint32_t bound) { return static_cast<int32_t>(random_() % bound); }

  void Submit(int index) {
    const std::string id = "r" + std::to_string(index);
    if (Below(2) == 0) {
      requests_.push_back(RandomRequest(id, &random_));
    } else {
      requests_.push_back(BeamRequest(id, 1 + Below(5), 1 + Below(30), 1 + Below(15), Below(3) * 100));
      BeamSearchParams* params = ParamsOf(&requests_.back());
      params->ignore_eos = Below(2) == 0;
      params->length_penalty = Below(3);
      params->early_stopping = static_cast<EarlyStopping>(Below(3));
      requests_.back().priority = Below(3);
    }
    ASSERT_EQ(Scheduler::Check(options_, requests_.back()), absl::OkStatus());
    harness_.Add(requests_.back());
  }

  void Disturb() {
    harness_.worker.RefuseSwaps(Below(8) == 0);
    switch (Below(5)) {
      case 0: {
        if (requests_.empty()) return;
        const EngineRequest& victim = requests_[Below(static_cast<uint32_t>(requests_.size()))];
        if (harness_.scheduler.Abort(victim.id) != nullptr) aborted_.insert(victim.id);
        return;
      }
      case 1:
        harness_.Lose();
        return;
      case 2:
        harness_.SleepKeeping();
        harness_.WakeKeeping();
        return;
      case 3:
        harness_.Suspend();
        return;
      default:
        harness_.scheduler.ResetPrefixCache();
    }
  }

  std::mt19937 random_;
  const SchedulerOptions options_;
  Harness harness_;
  std::vector<EngineRequest> requests_;
  std::set<std::string> aborted_;
};

TEST(BeamsRandomTest, ExactAnswersWhateverHappens) {
  int64_t num_preemptions = 0, num_branches = 0, num_steps = 0, num_swaps = 0;
  for (uint32_t seed = 1; seed <= 1200; ++seed) {
    std::mt19937 random(seed);
    SchedulerOptions options = SmallOptions(/*num_blocks=*/static_cast<int32_t>(66 + random() % 60));
    options.blocks.enable_prefix_caching = random() % 2 == 0;
    options.blocks.num_host_blocks = static_cast<int32_t>(random() % 60);
    options.preemption = random() % 3 != 0 ? PreemptionMode::kSwap : PreemptionMode::kRecompute;
    options.host_prefix_caching = random() % 2 == 0 ? HostPrefixCaching::kOn : HostPrefixCaching::kOff;
    options.blocks.watermark = random() % 2 == 0 ? 0.05 : 0;
    options.policy = random() % 2 == 0 ? SchedulingPolicy::kFcfs : SchedulingPolicy::kPriority;
    options.priority_aging_steps = 30;
    options.max_num_seqs = static_cast<int32_t>(5 + random() % 12);
    RandomRun run(seed, options, random() % 2);
    SCOPED_TRACE(seed);
    run.Run(25);
    if (::testing::Test::HasFailure()) return;
    num_preemptions += run.harness().scheduler.stats().num_preemptions();
    num_swaps += run.harness().scheduler.stats().swaps.in_blocks;
    num_steps += static_cast<int64_t>(run.harness().steps.size());
    for (const v1::StepRequest& step : run.harness().steps) num_branches += step.branches_size();
  }
  EXPECT_GT(num_preemptions, 2000);
  EXPECT_GT(num_branches, 50000);
  EXPECT_GT(num_swaps, 2000);
  RecordProperty("steps", static_cast<int>(num_steps));
}

}  // namespace
}  // namespace somnus
