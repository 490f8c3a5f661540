// Random loads in which workers refuse requests and compute not-a-numbers: such errors end only these
// requests, and every other output is the reference's. The same load gives the same steps.
// everything_random_test.cc has loads without such errors.

#include <gtest/gtest.h>

#include <random>
#include <set>

#include "coordinator/scheduler/request_check.h"
#include "tests/scheduler/scheduler_harness.h"

namespace somnus {
namespace {

struct Load {
  std::map<std::string, EngineRequest> requests;
  std::set<std::string> aborted;
  std::vector<std::string> steps;  // serialized
  std::map<std::string, Answer> answers;
};

EngineRequest RandomRequest(std::mt19937* random, const std::string& id) {
  EngineRequest request =
      MakeRequest(id, 1 + static_cast<int32_t>((*random)() % 40), 1 + static_cast<int32_t>((*random)() % 30),
                  static_cast<int32_t>((*random)() % 3) * 100);
  request.priority = static_cast<int32_t>((*random)() % 3);
  if ((*random)() % 4 == 0) {
    const std::vector<int32_t> reference = FakeWorker::ReferenceTokens(request.prompt, 10);
    OwnSampling(&request)->eos_token_ids = {reference[(*random)() % 10]};
  }
  if ((*random)() % 6 == 0) OwnSampling(&request)->num_prompt_logprobs = 0;
  return request;
}

// Some steps compute not-a-numbers for a slot, and workers refuse some requests.
Load RunLoad(uint32_t seed, size_t depth) {
  std::mt19937 random(seed);
  SchedulerOptions options = SmallOptions(/*num_blocks=*/19 + static_cast<int32_t>(random() % 30));
  options.max_num_batched_tokens = 8 + static_cast<int32_t>(random() % 40);
  options.policy = random() % 2 ? SchedulingPolicy::kPriority : SchedulingPolicy::kFcfs;
  options.blocks.enable_prefix_caching = random() % 3 != 0;
  options.blocks.watermark = 0.05;
  options.max_num_partial_prefills = 1 + static_cast<int32_t>(random() % 3);
  options.max_long_partial_prefills = 1 + static_cast<int32_t>(random() % 2);
  options.long_prefill_token_threshold = static_cast<int32_t>(random() % 12);
  options.priority_aging_steps = static_cast<int32_t>(random() % 10);
  if (random() % 2 == 0) options.step_bytes = 300 + static_cast<int32_t>(random() % 1000);
  Harness harness(options, depth);
  Load load;
  for (int i = 0; i < 400 && !::testing::Test::HasFatalFailure(); ++i) {
    if (random() % 5 == 0) {
      EngineRequest request = RandomRequest(&random, std::to_string(i));
      if (random() % 10 == 0) OwnSampling(&request)->temperature = -1;
      const int num_choices = random() % 3 == 0 ? 1 + static_cast<int>(random() % 6) : 1;
      for (int choice = 0; choice < num_choices && CheckRequest(options, request).ok(); ++choice) {
        load.requests[request.id] = request;
        harness.Add(request);
        request.fork_of = std::to_string(i);
        request.id = request.fork_of + "." + std::to_string(choice);
      }
    }
    if (random() % 40 == 0 && !load.requests.empty()) {
      auto it = load.requests.begin();
      std::advance(it, random() % load.requests.size());
      if (harness.scheduler.Abort(it->first) != nullptr) load.aborted.insert(it->first);
    }
    if (random() % 10 == 0) {
      harness.worker.MakeNan(static_cast<int64_t>(harness.steps.size()) + 1,
                             static_cast<int32_t>(random() % options.max_num_seqs));
    }
    harness.Step();
  }
  harness.RunToEnd();
  EXPECT_EQ(harness.scheduler.blocks().pool().num_used(), 0);
  EXPECT_FALSE(harness.scheduler.has_sequences());
  for (const v1::StepRequest& step : harness.steps) load.steps.push_back(step.SerializeAsString());
  load.answers = harness.answers;
  return load;
}

TEST(SchedulerRandomTest, SlotErrorsEndTheirOwnRequestsOnly) {
  int refused = 0, nan = 0, exact = 0;
  for (uint32_t seed = 1; seed <= 60; ++seed) {
    for (size_t depth : {0u, 1u}) {
      const Load load = RunLoad(seed, depth);
      ASSERT_FALSE(HasFatalFailure()) << "seed " << seed;
      for (const auto& [id, request] : load.requests) {
        if (load.aborted.contains(id)) continue;
        ASSERT_TRUE(load.answers.contains(id)) << "seed " << seed;
        const Answer& answer = load.answers.at(id);
        std::vector<int32_t> expected = ReferenceUntilItStops(request);
        if (answer.reason == FinishReason::kError) {
          ASSERT_LT(answer.tokens.size(), expected.size());
          expected.resize(answer.tokens.size());
        }
        ASSERT_EQ(answer.tokens, expected) << "seed " << seed << " depth " << depth << " request " << id;
        ASSERT_EQ(request.sampling->temperature < 0, absl::IsInvalidArgument(answer.error));
        refused += absl::IsInvalidArgument(answer.error);
        nan += absl::IsInternal(answer.error);
        exact += answer.error.ok();
      }
    }
  }
  EXPECT_GT(refused, 100);
  EXPECT_GT(nan, 100);
  EXPECT_GT(exact, 1000);
}

TEST(SchedulerRandomTest, TheSameLoadGivesTheSameSteps) {
  for (uint32_t seed = 1; seed <= 10; ++seed)
    EXPECT_EQ(RunLoad(seed, 1).steps, RunLoad(seed, 1).steps) << seed;
}

}  // namespace
}  // namespace somnus
