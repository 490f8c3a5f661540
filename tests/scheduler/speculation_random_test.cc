// Random loads with drafts that are right and wrong: whatever arrives, stops, is aborted, preempted, swapped,
// lost or put to sleep, every output is exactly the reference's, at both depths.

#include <gtest/gtest.h>

#include <random>
#include <set>

#include "tests/scheduler/fake_drafter.h"
#include "tests/scheduler/scheduler_harness.h"

namespace somnus {
namespace {

struct Totals {
  int64_t steps = 0, drafts = 0, draft_tokens = 0, accepted = 0, preemptions = 0, swaps = 0, forks = 0,
          losses = 0, sleeps = 0;
};

EngineRequest RandomDraftedRequest(std::mt19937* random, const std::string& id) {
  EngineRequest request =
      MakeRequest(id, 1 + static_cast<int32_t>((*random)() % 40), 1 + static_cast<int32_t>((*random)() % 50),
                  static_cast<int32_t>((*random)() % 3) * 100);
  request.priority = static_cast<int32_t>((*random)() % 3);
  if ((*random)() % 5 == 0) request.cache_salt = "salt";
  if ((*random)() % 4 == 0) {
    const std::vector<int32_t> reference = FakeWorker::ReferenceTokens(request.prompt, 30);
    OwnSampling(&request)->eos_token_ids = {reference[(*random)() % 30]};
  }
  if ((*random)() % 6 == 0) OwnSampling(&request)->num_prompt_logprobs = 0;
  if ((*random)() % 6 == 0) OwnSampling(&request)->num_logprobs = 1;
  if ((*random)() % 8 == 0) OwnSampling(&request)->repetition_penalty = 1.5f;
  return request;
}

SchedulerOptions RandomOptions(std::mt19937* random) {
  const auto below = [random](uint32_t bound) { return static_cast<int32_t>((*random)() % bound); };
  SchedulerOptions options = SmallOptions(/*num_blocks=*/26 + below(30));
  options.max_num_batched_tokens = 8 + below(40);
  options.policy = below(2) == 0 ? SchedulingPolicy::kPriority : SchedulingPolicy::kFcfs;
  options.blocks.enable_prefix_caching = below(4) != 0;
  options.blocks.watermark = below(2) == 0 ? 0.05 : 0;
  options.blocks.num_host_blocks = below(2) == 0 ? 30 : 0;
  options.preemption = below(2) == 0 ? PreemptionMode::kSwap : PreemptionMode::kRecompute;
  options.long_prefill_token_threshold = below(12);
  options.priority_aging_steps = below(10);
  const auto seed = static_cast<uint64_t>((*random)());
  const int64_t rate = below(100);  // of wrong guesses, in percent
  options.speculation = FakeDrafts(1 + below(12), [seed, rate](int64_t position) {
    std::mt19937 one(static_cast<uint32_t>(seed + static_cast<uint64_t>(position) * 7919));
    return static_cast<int64_t>(one() % 100) < rate / 2;
  });
  return options;
}

// asks_workers: drafts come from the workers.
void RunLoad(uint32_t seed, size_t depth, bool asks_workers, Totals* totals) {
  std::mt19937 random(seed);
  SchedulerOptions options = RandomOptions(&random);
  if (asks_workers) options.speculation = WorkersDrafts(options.speculation.num_speculative_tokens);
  Harness harness(options, depth, /*nan_token=*/-1, /*wrong_period=*/static_cast<int32_t>(3 + seed % 17));
  std::map<std::string, EngineRequest> requests;
  std::set<std::string> aborted;
  for (int i = 0; i < 400 && !::testing::Test::HasFatalFailure(); ++i) {
    if (random() % 6 == 0) {
      EngineRequest request = RandomDraftedRequest(&random, std::to_string(i));
      const int num_choices = random() % 3 == 0 ? 1 + static_cast<int>(random() % 4) : 1;
      for (int choice = 0; choice < num_choices && Scheduler::Check(options, request).ok(); ++choice) {
        requests[request.id] = request;
        harness.Add(request);
        request.fork_of = std::to_string(i);
        request.id = request.fork_of + "." + std::to_string(choice);
      }
    }
    if (random() % 40 == 0 && !requests.empty()) {
      auto it = requests.begin();
      std::advance(it, random() % requests.size());
      if (harness.scheduler.Abort(it->first) != nullptr) aborted.insert(it->first);
    }
    if (random() % 80 == 0) {
      harness.Lose();
      ++totals->losses;
    }
    if (random() % 80 == 0 && options.blocks.num_host_blocks > 0) {
      harness.SleepKeeping();
      harness.WakeKeeping();
      ++totals->sleeps;
    }
    if (random() % 60 == 0) harness.scheduler.ResetPrefixCache();
    harness.Step();
  }
  harness.RunToEnd();
  ASSERT_FALSE(::testing::Test::HasFatalFailure());
  EXPECT_EQ(harness.scheduler.blocks().pool().num_used(), 0);
  for (const auto& [id, request] : requests) {
    if (aborted.contains(id)) continue;
    ASSERT_TRUE(harness.answers.contains(id)) << id;
    const Answer& answer = harness.answers.at(id);
    ASSERT_EQ(answer.tokens, ReferenceUntilItStops(request)) << "request " << id;
    ASSERT_TRUE(answer.error.ok()) << answer.error;
    if (request.sampling->num_logprobs >= 0) {
      ASSERT_EQ(answer.logprobs.size(), answer.tokens.size());
    }
  }
  const SpeculationCounts& counts = harness.scheduler.speculation();
  totals->steps += static_cast<int64_t>(harness.steps.size());
  totals->drafts += counts.num_drafts;
  totals->draft_tokens += counts.num_draft_tokens;
  totals->accepted += counts.num_accepted_tokens;
  totals->preemptions += harness.scheduler.stats().num_preemptions();
  totals->swaps += harness.scheduler.stats().swaps.in_blocks;
  totals->forks += harness.scheduler.stats().num_forks;
}

// 120 loads at both depths, which have tried something.
void RunLoads(uint32_t first_seed, bool asks_workers, Totals* totals) {
  for (uint32_t seed = first_seed; seed < first_seed + 120; ++seed) {
    for (size_t depth : {0u, 1u}) {
      RunLoad(seed, depth, asks_workers, totals);
      ASSERT_FALSE(::testing::Test::HasFatalFailure()) << "seed " << seed << " depth " << depth;
    }
  }
  EXPECT_GT(totals->preemptions, 500);
  EXPECT_GT(totals->swaps, 100);
  EXPECT_GT(totals->forks, 500);
  EXPECT_GT(totals->losses, 100);
  EXPECT_GT(totals->sleeps, 100);
}

TEST(SpeculationRandomTest, EveryAnswerIsExactAtBothDepths) {
  Totals totals;
  RunLoads(/*first_seed=*/1, /*asks_workers=*/false, &totals);
  ASSERT_FALSE(HasFatalFailure());
  EXPECT_GT(totals.steps, 80000);
  EXPECT_GT(totals.drafts, 5000);
  EXPECT_GT(totals.accepted, 5000);
  EXPECT_GT(totals.draft_tokens - totals.accepted, 1000) << "of wrong tokens";
}

TEST(SpeculationRandomTest, EveryAnswerIsExactWithADraftModel) {
  Totals totals;
  RunLoads(/*first_seed=*/1001, /*asks_workers=*/true, &totals);
  ASSERT_FALSE(HasFatalFailure());
  EXPECT_GT(totals.drafts, 1000);
  EXPECT_GT(totals.accepted, 1000);
  EXPECT_GT(totals.draft_tokens - totals.accepted, 200) << "of wrong tokens";
}

}  // namespace
}  // namespace somnus
