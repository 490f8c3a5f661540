// Workers in a pipeline: as many steps in flight as stages, of different sequences, and every sampled token
// comes back to the workers, whose first stages do not know the token otherwise. The tokens stay the
// reference's.

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

#include "coordinator/scheduler/request_check.h"
#include "tests/scheduler/scheduler_harness.h"

namespace somnus {
namespace {

SchedulerOptions Staged(int32_t num_stages, int32_t num_blocks = 64) {
  SchedulerOptions options = SmallOptions(num_blocks);
  options.num_stages = num_stages;
  return options;
}

// The knowledge of a first stage: the tokens that messages have named.
class FirstStage {
 public:
  void Follow(const v1::StepRequest& step) {
    for (const v1::NewSequence& sequence : step.new_sequences())
      slots_[sequence.slot()] = {sequence.token_ids_size(), sequence.num_computed_tokens()};
    std::map<int32_t, Slot> before = slots_;
    for (const v1::SequenceFork& branch : step.branches())
      slots_[branch.slot()] = before[branch.source_slot()];
    for (const v1::ScheduledSequence& sequence : step.sequences()) {
      Slot& slot = slots_[sequence.slot()];
      if (sequence.input_token_ids_size() > 0) {
        slot = {sequence.start_position() + sequence.input_token_ids_size(), sequence.start_position()};
      }
      EXPECT_LE(slot.computed + sequence.num_tokens(), slot.known)
          << "step " << step.step_id() << " computes a token that the first stage does not know";
      slot.computed += sequence.num_tokens();
    }
    for (const v1::SequenceFork& fork : step.forks()) slots_[fork.slot()] = slots_[fork.source_slot()];
  }

 private:
  struct Slot {
    int64_t known = 0;
    int64_t computed = 0;
  };
  std::map<int32_t, Slot> slots_;
};

std::set<int32_t> SlotsOf(const v1::StepRequest& step) {
  std::set<int32_t> slots;
  for (const v1::ScheduledSequence& sequence : step.sequences()) slots.insert(sequence.slot());
  return slots;
}

TEST(StagesTest, StepsInFlightDecodeDifferentSequencesInEqualParts) {
  constexpr int kStages = 3;
  SchedulerOptions options = Staged(kStages);
  options.max_num_batched_tokens = 64;
  Harness harness(options, kStages - 1);
  for (int i = 0; i < 6; ++i) harness.Add(MakeRequest(std::to_string(i), 3, 12, 100 * i));
  harness.RunToEnd();
  size_t full = 0;
  for (size_t i = kStages; i + 1 < harness.steps.size(); ++i) {
    std::set<int32_t> seen;
    size_t count = 0;
    for (int k = 0; k < kStages; ++k) {
      const std::set<int32_t> slots = SlotsOf(harness.steps[i - k]);
      EXPECT_LE(slots.size(), 2u);
      seen.insert(slots.begin(), slots.end());
      count += slots.size();
    }
    EXPECT_EQ(seen.size(), count) << "a sequence decodes in two steps in flight";
    full += count == 6 ? 1 : 0;
  }
  EXPECT_GT(full, 20u) << "all stages have work most of the time";
}

TEST(StagesTest, WhereOneStepIsInFlightEachStepDecodesAllSequences) {
  SchedulerOptions options = Staged(2);
  options.fills_stages = false;
  options.max_num_batched_tokens = 64;
  Harness harness(options);
  for (int i = 0; i < 4; ++i) harness.Add(MakeRequest(std::to_string(i), 3, 6, 100 * i));
  harness.RunToEnd();
  EXPECT_EQ(harness.steps.size(), 6u) << "the prompts, and five decodes";
  for (const v1::StepRequest& step : harness.steps) EXPECT_EQ(SlotsOf(step).size(), 4u);
  FirstStage first;
  for (const v1::StepRequest& step : harness.steps) first.Follow(step);
}

TEST(StagesTest, ChunksOfAPromptFollowEachOtherThroughTheStages) {
  Harness harness(Staged(2), /*depth=*/1);
  harness.Add(MakeRequest("long", 60, 2));
  ASSERT_TRUE(harness.Step());
  EXPECT_EQ(harness.in_flight(), 1u);
  ASSERT_TRUE(harness.Step());
  EXPECT_EQ(harness.steps.back().sequences(0).num_tokens(), 16) << "the first chunk is still in flight";
  harness.RunToEnd();
  EXPECT_EQ(harness.answers["long"].tokens, Reference(MakeRequest("long", 60, 2)));
}

// `seed`: of requests that come, stop and are aborted, under preemption, with choices and drafts.
void RunRandomLoad(uint32_t seed, int32_t num_stages) {
  std::mt19937 random(seed);
  SchedulerOptions options = Staged(num_stages, 19 + static_cast<int32_t>(random() % 30));
  options.max_num_batched_tokens = 8 + static_cast<int32_t>(random() % 40);
  options.policy = random() % 2 ? SchedulingPolicy::kPriority : SchedulingPolicy::kFcfs;
  options.blocks.enable_prefix_caching = random() % 3 != 0;
  if (random() % 2 == 0) {
    options.blocks.num_host_blocks = 64;
    options.preemption = PreemptionMode::kSwap;
  }
  Harness harness(options, static_cast<size_t>(num_stages) - 1);
  std::map<std::string, EngineRequest> requests;
  std::set<std::string> aborted;
  for (int i = 0; i < 300 && !::testing::Test::HasFatalFailure(); ++i) {
    if (random() % 5 == 0) {
      EngineRequest request = RandomRequest(std::to_string(i), &random);
      const int num_choices = random() % 3 == 0 ? 3 : 1;
      for (int choice = 0; choice < num_choices && CheckRequest(options, request).ok(); ++choice) {
        requests[request.id] = request;
        harness.Add(request);
        request.fork_of = std::to_string(i);
        request.id = request.fork_of + "." + std::to_string(choice);
      }
    }
    if (random() % 60 == 0 && !requests.empty()) {
      const std::string id = requests.begin()->first;
      if (harness.scheduler.Abort(id) != nullptr) aborted.insert(id);
    }
    if (random() % 80 == 0) {
      harness.SleepKeeping();
      harness.WakeKeeping();
    }
    harness.Step();
  }
  harness.RunToEnd();
  for (const auto& [id, request] : requests) {
    if (aborted.count(id) > 0) continue;
    EXPECT_EQ(harness.answers[id].tokens, Reference(request)) << "request " << id << ", seed " << seed;
  }
  FirstStage first;
  for (const v1::StepRequest& step : harness.steps) first.Follow(step);
}

TEST(StagesTest, RandomLoadsHaveTheReferencesTokens) {
  for (uint32_t seed = 1; seed <= 30 && !HasFailure(); ++seed)
    RunRandomLoad(seed, 2 + static_cast<int32_t>(seed % 3));
}

}  // namespace
}  // namespace somnus
