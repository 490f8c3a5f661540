// Branches and named tokens through the whole runner: a slot samples exactly the tokens that a sequence of
// the same tokens samples when computed whole.

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "tests/runner/branch_tree.h"
#include "tests/runner/mini_engine.h"
#include "tests/runner/same_bits.h"

namespace somnus {
namespace {

class BranchTest : public testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    auto group = RankGroup::Load("tests/data/tiny/qwen3", GetParam(), SmallRunnerOptions(), 64);
    ASSERT_TRUE(group.ok()) << group.status();
    group_ = *std::move(group);
  }

  void ExpectTheSame(const v1::StepSampling& sampling, int32_t prompt_len, int32_t num_steps) {
    BranchTree tree(group_.get(), sampling, prompt_len, /*seed=*/static_cast<uint64_t>(prompt_len));
    const auto leaves = tree.Run(num_steps);
    ASSERT_TRUE(leaves.ok()) << leaves.status();
    for (const BranchLeaf& leaf : *leaves) {
      const auto whole = SampleWhole(*group_, sampling, leaf.tokens, tree.prompt().size());
      ASSERT_TRUE(whole.ok()) << whole.status();
      EXPECT_EQ(leaf.sampled.token_id(), whole->token_id()) << leaf.tokens.size() << " tokens";
      ExpectSameLogprobs({leaf.sampled.logprobs()}, {whole->logprobs()});
    }
    MiniRequest alone{.prompt = tree.prompt(), .max_tokens = num_steps + 1, .sampling = sampling};
    const auto neighbour = RunAll(*group_, {alone}, {});
    ASSERT_TRUE(neighbour.ok()) << neighbour.status();
    EXPECT_EQ(tree.neighbour(),
              std::vector<int32_t>((*neighbour)[0].tokens.begin() + 1, (*neighbour)[0].tokens.end()));
  }

  std::unique_ptr<RankGroup> group_;
};

TEST_P(BranchTest, LogprobsAreThoseOfTheSequence) {
  v1::StepSampling sampling = GreedySampling();
  sampling.set_num_logprobs(6);
  for (const int32_t prompt_len : {1, 15, 16, 21}) ExpectTheSame(sampling, prompt_len, 20);
}

// A token that was sampled and then replaced is not counted.
TEST_P(BranchTest, PenaltiesCountTheTokensThatWereNamed) {
  v1::StepSampling sampling = GreedySampling();
  sampling.set_num_logprobs(0);
  sampling.set_repetition_penalty(1.5f);
  sampling.set_frequency_penalty(0.5f);
  ExpectTheSame(sampling, 9, 12);
}

TEST_P(BranchTest, BadWordsSeeTheTokensThatWereNamed) {
  v1::StepSampling sampling = GreedySampling();
  for (int32_t first = 0; first < 200; ++first) {
    v1::BadWord* word = sampling.add_bad_words();
    word->add_token_ids(first);
    word->add_token_ids((first * 7) % 200);
  }
  ExpectTheSame(sampling, 5, 6);
}

INSTANTIATE_TEST_SUITE_P(Ranks, BranchTest, testing::Values(1, 2));

}  // namespace
}  // namespace somnus
