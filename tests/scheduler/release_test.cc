// Sequences leave a scheduler with their progress and go on at a second scheduler: exactly the tokens of an
// undisturbed run, each once, and nothing counts twice.

#include <gtest/gtest.h>

#include <random>

#include "tests/scheduler/scheduler_harness.h"

namespace somnus {
namespace {

// Several schedulers, each with a worker, and the tokens that clients have got from all schedulers together.
class Schedulers {
 public:
  Schedulers(size_t count, const SchedulerOptions& options, size_t depth) {
    for (size_t i = 0; i < count; ++i) all_.push_back(std::make_unique<Harness>(options, depth));
  }

  Harness& operator[](size_t i) { return *all_[i]; }
  size_t size() const { return all_.size(); }

  // The worker of `from` dies, and all sequences of `from` go on at `to`, which may be the same scheduler.
  void Move(size_t from, size_t to) {
    all_[from]->Lose();
    Gather(from);
    for (EngineRequest& request : all_[from]->scheduler.ReleaseAll()) all_[to]->Add(std::move(request));
    if (from != to) {
      EXPECT_FALSE(all_[from]->scheduler.has_sequences());
    }
    all_[from]->Check();
    all_[to]->Check();
  }

  void RunToEnd() {
    for (size_t i = 0; i < all_.size(); ++i) {
      all_[i]->RunToEnd();
      Gather(i);
    }
  }

  std::map<std::string, Answer> answers;

 private:
  void Gather(size_t i) {
    for (auto& [id, part] : all_[i]->answers) {
      Answer& answer = answers[id];
      EXPECT_EQ(answer.reason, FinishReason::kNone) << "output after the last one";
      answer.tokens.insert(answer.tokens.end(), part.tokens.begin(), part.tokens.end());
      answer.logprobs.insert(answer.logprobs.end(), part.logprobs.begin(), part.logprobs.end());
      answer.prompt_logprobs.insert(answer.prompt_logprobs.end(), part.prompt_logprobs.begin(),
                                    part.prompt_logprobs.end());
      answer.reason = part.reason;
      answer.num_cached = part.num_cached;
    }
    all_[i]->answers.clear();
  }

  std::vector<std::unique_ptr<Harness>> all_;
};

class ReleaseTest : public ::testing::TestWithParam<int> {
 protected:
  size_t depth() const { return static_cast<size_t>(GetParam()); }
};
INSTANTIATE_TEST_SUITE_P(Overlap, ReleaseTest, ::testing::Values(0, 1));

// The prompt takes three steps, so this covers moves in prefill and in decode.
TEST_P(ReleaseTest, WheneverItMovesTokensAndLogprobsAreThoseOfAnUndisturbedRun) {
  EngineRequest request = MakeRequest("a", 40, 9);
  SamplingParams* sampling = OwnSampling(&request);
  sampling->num_prompt_logprobs = 0;
  sampling->num_logprobs = 0;
  for (int moved_after = 0; moved_after < 16; ++moved_after) {
    Schedulers schedulers(2, SmallOptions(), depth());
    schedulers[0].Add(request);
    for (int i = 0; i < moved_after; ++i) schedulers[0].Step();
    schedulers.Move(0, 1);
    schedulers.RunToEnd();
    ASSERT_FALSE(HasFatalFailure()) << moved_after;
    const Answer& answer = schedulers.answers["a"];
    EXPECT_EQ(answer.tokens, Reference(request)) << moved_after;
    EXPECT_EQ(answer.logprobs.size(), 9u) << moved_after;
    EXPECT_EQ(answer.prompt_logprobs.size(), 40u) << moved_after;
    EXPECT_EQ(answer.reason, FinishReason::kLength);
    const SchedulerStats &first = schedulers[0].scheduler.stats(), &second = schedulers[1].scheduler.stats();
    EXPECT_EQ(first.prompt_tokens + second.prompt_tokens, 40) << moved_after;
    EXPECT_EQ(first.generation_tokens + second.generation_tokens, 9) << moved_after;
  }
}

TEST_P(ReleaseTest, MinTokensAndStopsCountWhatWasDeliveredBefore) {
  EngineRequest request = MakeRequest("a", 6, 20);
  const std::vector<int32_t> reference = Reference(request);
  OwnSampling(&request)->min_tokens = 8;
  OwnSampling(&request)->stop_token_ids = {reference[9]};
  Schedulers undisturbed(1, SmallOptions(), depth());
  undisturbed[0].Add(request);
  undisturbed.RunToEnd();
  for (int moved_after = 1; moved_after < 10; ++moved_after) {
    Schedulers schedulers(2, SmallOptions(), depth());
    schedulers[0].Add(request);
    for (int i = 0; i < moved_after; ++i) schedulers[0].Step();
    schedulers.Move(0, 1);
    schedulers.RunToEnd();
    EXPECT_EQ(schedulers.answers["a"].tokens, undisturbed.answers["a"].tokens) << moved_after;
    EXPECT_EQ(schedulers.answers["a"].reason, undisturbed.answers["a"].reason) << moved_after;
  }
}

TEST(SchedulerRelease, FailuresAndTimesGoAlong) {
  Scheduler first(SmallOptions()), second(SmallOptions());
  first.Add(MakeRequest("a", 4, 5));
  first.Schedule();
  const std::vector<SequencePtr> suspects = first.Recover();
  ASSERT_EQ(suspects.size(), 1u);
  suspects[0]->num_failures = 2;
  suspects[0]->num_tokens_at_failure = 4;
  suspects[0]->runs_alone = true;
  suspects[0]->moments.scheduled = absl::FromUnixSeconds(7);
  std::vector<EngineRequest> released = first.ReleaseAll();
  ASSERT_EQ(released.size(), 1u);
  const SequencePtr sequence = second.Add(std::move(released[0]));
  EXPECT_EQ(sequence->num_failures, 2);
  EXPECT_EQ(sequence->num_tokens_at_failure, 4);
  EXPECT_TRUE(sequence->runs_alone);
  EXPECT_EQ(sequence->moments.scheduled, absl::FromUnixSeconds(7));
  EXPECT_EQ(second.num_preempted(), 1);
  EXPECT_TRUE(second.Schedule().first_scheduled.empty());
}

TEST(SchedulerRelease, WhatWaitingHasGainedGoesAlong) {
  SchedulerOptions options = SmallOptions();
  options.policy = SchedulingPolicy::kPriority;
  options.priority_aging_steps = 2;
  options.max_num_seqs = 1;
  Harness first(options);
  first.Add(MakeRequest("runs", 4, 20));
  first.Step();
  EngineRequest late = MakeRequest("late", 4, 5);
  late.priority = 3;
  first.Add(late);
  for (int i = 0; i < 5; ++i) first.Step();
  first.Lose();
  Scheduler second(options);
  for (EngineRequest& request : first.scheduler.ReleaseAll()) {
    const bool is_late = request.id == "late";
    const SequencePtr sequence = second.Add(std::move(request));
    if (is_late) {
      EXPECT_LT(sequence->effective_priority, 3);
    }
  }
}

// Little memory, so that sequences are preempted with tokens in flight, too.
TEST_P(ReleaseTest, RandomLoadsAndMoves) {
  for (uint32_t seed = 1; seed <= 60; ++seed) {
    std::mt19937 random(seed);
    SchedulerOptions options = SmallOptions(/*num_blocks=*/19 + static_cast<int32_t>(random() % 20));
    options.policy = random() % 2 ? SchedulingPolicy::kPriority : SchedulingPolicy::kFcfs;
    Schedulers schedulers(3, options, depth());
    std::map<std::string, EngineRequest> requests;
    for (int i = 0; i < 200; ++i) {
      const size_t one = random() % 3;
      if (random() % 4 == 0) {
        const EngineRequest request = RandomRequest(std::to_string(i), &random);
        requests[request.id] = request;
        schedulers[one].Add(request);
      }
      if (random() % 10 == 0) schedulers.Move(one, random() % 3);
      schedulers[random() % 3].Step();
    }
    schedulers.RunToEnd();
    ASSERT_FALSE(HasFatalFailure()) << "seed " << seed;
    for (const auto& [id, request] : requests)
      ASSERT_EQ(schedulers.answers[id].tokens, Reference(request)) << "seed " << seed << " request " << id;
  }
}

}  // namespace
}  // namespace somnus
