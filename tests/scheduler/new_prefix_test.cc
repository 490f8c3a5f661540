// Prompts that begin alike and come together: the shared prefix is computed once.

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/scheduler/scheduler_harness.h"

namespace somnus {
namespace {

// `shared` tokens that all prompts have, then `own` tokens that only this prompt has.
EngineRequest Prompt(const std::string& id, int32_t shared, int32_t own) {
  EngineRequest request = MakeRequest(id, shared, 4);
  for (int32_t i = 0; i < own; ++i)
    SetPromptToken(request.prompt.size(), 300 + 10 * id.back() % 97 + i, &request);
  return request;
}

class NewPrefixTest : public ::testing::Test {
 protected:
  NewPrefixTest() : options_(SmallOptions()) { options_.max_num_batched_tokens = 64; }

  void Run(const std::vector<EngineRequest>& requests, size_t depth = 0) {
    harness_ = std::make_unique<Harness>(options_, depth);
    for (const EngineRequest& request : requests) harness_->Add(request);
    harness_->RunToEnd();
    for (const EngineRequest& request : requests)
      EXPECT_EQ(harness_->answers.at(request.id).tokens, Reference(request)) << request.id;
    EXPECT_EQ(harness_->scheduler.blocks().pool().num_used(), 0);
  }
  int32_t Cached(const std::string& id) { return harness_->answers.at(id).num_cached; }
  int64_t FirstToken(const std::string& id) { return harness_->answers.at(id).first_token_step; }

  SchedulerOptions options_;
  std::unique_ptr<Harness> harness_;
};

TEST_F(NewPrefixTest, WhatTwoPromptsShareIsComputedOnce) {
  for (const size_t depth : {0, 1}) {
    Run({Prompt("a", 17, 3), Prompt("b", 17, 4), Prompt("c", 17, 5)}, depth);
    EXPECT_EQ(Cached("a"), 0);
    EXPECT_EQ(Cached("b"), 16);
    EXPECT_EQ(Cached("c"), 16);
    EXPECT_EQ(FirstToken("b"), 2) << "the next step";
    EXPECT_EQ(FirstToken("c"), 2);
  }
}

TEST_F(NewPrefixTest, APromptOfSeveralStepsIsWaitedFor) {
  options_.max_num_batched_tokens = 16;
  Run({Prompt("a", 60, 0), Prompt("b", 60, 0)});
  EXPECT_EQ(Cached("b"), 56);
  EXPECT_EQ(harness_->worker.num_computed_tokens(), 60 + 4 + 2 * 3);
}

TEST_F(NewPrefixTest, OthersGoAhead) {
  Run({Prompt("a", 16, 2), Prompt("b", 16, 2), MakeRequest("x", 9, 4, 700)});
  EXPECT_EQ(FirstToken("x"), 1);
  EXPECT_EQ(FirstToken("b"), 2);
}

TEST_F(NewPrefixTest, AnyWholeBlockIsWaitedFor) {
  Run({Prompt("a", 4, 2), Prompt("b", 4, 40)});
  EXPECT_EQ(Cached("b"), 4);
  EXPECT_EQ(FirstToken("b"), 2);
  EXPECT_EQ(harness_->worker.num_computed_tokens(), 6 + 40 + 2 * 3);
  Run({Prompt("a", 3, 2), Prompt("b", 3, 40)});
  EXPECT_EQ(Cached("b"), 0);
  EXPECT_EQ(FirstToken("b"), 1);
}

// The sequence waits for a block of "a", adopts that block, and then waits for the second block, which "c" is
// computing.
TEST_F(NewPrefixTest, EachWaitEndsWithMoreThanWasCached) {
  options_.max_num_batched_tokens = 8;
  harness_ = std::make_unique<Harness>(options_);
  harness_->Add(Prompt("a", 4, 4));
  harness_->Add(Prompt("b", 12, 3));
  harness_->Add(Prompt("c", 12, 6));
  harness_->RunToEnd();
  EXPECT_EQ(Cached("b"), 4);
  EXPECT_EQ(Cached("c"), 12);
  EXPECT_EQ(harness_->worker.num_computed_tokens(), 8 + 11 + 6 + 3 * 3);
}

TEST_F(NewPrefixTest, WhatIsCachedAlreadyIsNotWaitedFor) {
  Run({Prompt("a", 16, 2), Prompt("b", 16, 2)});
  const int64_t computed = harness_->worker.num_computed_tokens();
  const size_t num_steps = harness_->steps.size();
  harness_->Add(Prompt("c", 16, 2));
  harness_->Add(Prompt("d", 16, 2));
  harness_->RunToEnd();
  EXPECT_EQ(FirstToken("c"), static_cast<int64_t>(num_steps) + 1);
  EXPECT_EQ(FirstToken("d"), FirstToken("c"));
  EXPECT_EQ(harness_->worker.num_computed_tokens(), computed + 2 * (2 + 3));
}

TEST_F(NewPrefixTest, NobodyWaitsForOneThatIsLessUrgent) {
  options_.policy = SchedulingPolicy::kPriority;
  options_.max_num_batched_tokens = 16;
  harness_ = std::make_unique<Harness>(options_);
  EngineRequest late = Prompt("a", 40, 0);
  late.priority = 5;
  harness_->Add(late);
  ASSERT_TRUE(harness_->Step());
  harness_->Add(Prompt("b", 40, 0));
  ASSERT_TRUE(harness_->Step());
  EXPECT_EQ(harness_->steps[1].new_sequences_size(), 1);
  harness_->RunToEnd();
  EXPECT_EQ(harness_->answers.at("b").tokens, Reference(Prompt("b", 40, 0)));
}

// Both requests are as urgent when they come; the waiting request becomes more urgent while the other prompt
// is under way.
TEST_F(NewPrefixTest, WhoHasAgedBeyondThePromptThatIsWaitedForWaitsNoLonger) {
  options_.policy = SchedulingPolicy::kPriority;
  options_.max_num_batched_tokens = 16;
  const auto start_of_second = [&](int32_t aging_steps) {
    options_.priority_aging_steps = aging_steps;
    Run({Prompt("a", 90, 0), Prompt("b", 90, 0)});
    const auto& steps = harness_->steps;
    const auto second = std::find_if(steps.begin() + 1, steps.end(),
                                     [](const auto& step) { return step.new_sequences_size() > 0; });
    return second - steps.begin() + 1;
  };
  EXPECT_EQ(start_of_second(/*aging_steps=*/0), 7) << "it waits for all that it can adopt";
  EXPECT_EQ(Cached("b"), 88);
  EXPECT_EQ(start_of_second(/*aging_steps=*/3), 4);
  EXPECT_EQ(Cached("b"), 3 * 16) << "of three steps";
}

TEST_F(NewPrefixTest, NobodyWaitsForBlocksThatItMayNotAdopt) {
  EngineRequest salted = Prompt("b", 16, 2), scored = Prompt("c", 16, 2);
  salted.cache_salt = "of another user";
  OwnSampling(&scored)->num_prompt_logprobs = 0;
  Run({Prompt("a", 16, 2), salted, scored});
  EXPECT_EQ(FirstToken("b"), 1);
  EXPECT_EQ(FirstToken("c"), 1);
  options_.blocks.enable_prefix_caching = false;
  Run({Prompt("a", 16, 2), Prompt("b", 16, 2)});
  EXPECT_EQ(FirstToken("b"), 1);
}

TEST_F(NewPrefixTest, AnAbortEndsTheWait) {
  options_.max_num_batched_tokens = 16;
  harness_ = std::make_unique<Harness>(options_);
  harness_->Add(Prompt("a", 60, 0));
  harness_->Add(Prompt("b", 60, 0));
  ASSERT_TRUE(harness_->Step());
  harness_->scheduler.Abort("a");
  harness_->RunToEnd();
  EXPECT_EQ(Cached("b"), 16) << "what the first step had computed";
  EXPECT_EQ(harness_->answers.at("b").tokens, Reference(Prompt("b", 60, 0)));
}

}  // namespace
}  // namespace somnus
