// Drafts through the whole runner: however many drafted tokens are right, a sequence samples the same tokens
// as without drafts, bit for bit, with every sampling parameter.

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "tests/runner/drafted_sequences.h"
#include "tests/runner/same_bits.h"

namespace somnus {
namespace {

MiniRequest Request(int32_t prompt_len, int32_t max_tokens) {
  MiniRequest request;
  for (int32_t i = 0; i < prompt_len; ++i) request.prompt.push_back((11 * i + prompt_len) % 50);
  request.max_tokens = max_tokens;
  return request;
}

class DraftsTest : public testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    auto group = RankGroup::Load("tests/data/tiny/qwen3", GetParam(), SmallRunnerOptions(), 64);
    ASSERT_TRUE(group.ok()) << group.status();
    group_ = *std::move(group);
  }

  // The requests alone, and then with drafts, by several seeds.
  void ExpectTheSame(const std::vector<MiniRequest>& requests) {
    auto wanted = RunAll(*group_, requests, {.num_blocks = 64});
    ASSERT_TRUE(wanted.ok()) << wanted.status();
    for (uint32_t seed = 1; seed <= 4; ++seed) {
      DraftedSequences drafted(group_.get(), requests, *wanted, seed);
      const std::vector<MiniResult> results = drafted.Run();
      ASSERT_EQ(results.size(), wanted->size());
      for (size_t i = 0; i < results.size(); ++i) ExpectSame(results[i], (*wanted)[i]);
      EXPECT_GT(drafted.num_accepted(), 20) << seed;
      EXPECT_LT(drafted.num_accepted(), drafted.num_drafted()) << seed;
    }
  }
  void ExpectTheSame(const v1::StepSampling& sampling) {
    std::vector<MiniRequest> requests = {Request(3, 50), Request(15, 40), Request(16, 45), Request(21, 60)};
    for (size_t i = 0; i < requests.size(); ++i) {
      requests[i].sampling = sampling;
      requests[i].seed = 100 + i;
    }
    ExpectTheSame(requests);
  }

  std::unique_ptr<RankGroup> group_;
};

TEST_P(DraftsTest, Greedy) { ExpectTheSame(GreedySampling()); }

TEST_P(DraftsTest, SampledWithLogprobs) {
  v1::StepSampling sampling = GreedySampling();
  sampling.set_temperature(0.9f);
  sampling.set_top_p(0.95f);
  sampling.set_top_k(40);
  sampling.set_num_logprobs(5);
  ExpectTheSame(sampling);
}

TEST_P(DraftsTest, PenaltiesCountTheTokensBeforeEachSample) {
  for (const float temperature : {0.0f, 1.0f}) {
    v1::StepSampling sampling = GreedySampling();
    sampling.set_temperature(temperature);
    sampling.set_repetition_penalty(1.3f);
    sampling.set_frequency_penalty(0.3f);
    sampling.set_presence_penalty(0.2f);
    sampling.set_num_logprobs(0);
    ExpectTheSame(sampling);
  }
}

TEST_P(DraftsTest, EditsSeeTheTokensBeforeEachSample) {
  v1::StepSampling sampling = GreedySampling();
  for (int32_t first = 0; first < 200; ++first) {
    v1::BadWord* word = sampling.add_bad_words();
    word->add_token_ids(first);
    word->add_token_ids((first * 7) % 200);
  }
  sampling.set_min_tokens(20);
  for (int32_t id = 0; id < 100; ++id) sampling.add_suppress_token_ids(3 * id);
  (*sampling.mutable_logit_bias())[17] = 3;
  ExpectTheSame(sampling);
}

TEST_P(DraftsTest, AllowedTokens) {
  v1::StepSampling sampling = GreedySampling();
  sampling.set_temperature(1);
  for (int32_t id = 0; id < 30; ++id) sampling.add_allowed_token_ids(id);
  ExpectTheSame(sampling);
}

TEST_P(DraftsTest, MixedSequences) {
  std::vector<MiniRequest> requests = {Request(3, 50), Request(15, 40), Request(16, 45), Request(21, 60)};
  requests[1].sampling.set_temperature(1);
  requests[2].sampling.set_repetition_penalty(1.5f);
  requests[3].sampling.set_num_logprobs(3);
  ExpectTheSame(requests);
}

INSTANTIATE_TEST_SUITE_P(Ranks, DraftsTest, testing::Values(1, 2));

}  // namespace
}  // namespace somnus
