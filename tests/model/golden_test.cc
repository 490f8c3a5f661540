// Every tiny checkpoint, on one to four ranks in fp32, against what transformers computes from the same
// weights.
#include <cmath>
#include <fstream>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/runner/mini_engine.h"
#include "tests/runner/rank_group.h"

namespace somnus {
namespace {

constexpr double kTolerance = 2e-4;  // the issue asks for 1e-3

struct Case {
  std::string name;
  std::vector<int32_t> prompt, tokens, ambiguous;
  std::vector<double> prompt_logprobs;  // of prompt tokens 1, 2, ...
};

std::vector<Case> ReadCases(const std::string& folder) {
  std::ifstream file(folder + "/expected.json");
  const nlohmann::json json = nlohmann::json::parse(file);
  std::vector<Case> cases;
  for (const nlohmann::json& j : json.at("cases")) {
    Case c;
    c.prompt = j.at("prompt").get<std::vector<int32_t>>();
    c.tokens = j.at("tokens").get<std::vector<int32_t>>();
    c.ambiguous = j.at("ambiguous").get<std::vector<int32_t>>();
    for (size_t i = 1; i < c.prompt.size(); ++i)
      c.prompt_logprobs.push_back(j.at("prompt_logprobs").at(i).get<double>());
    cases.push_back(c);
  }
  return cases;
}

void ExpectTokens(const Case& c, const std::vector<int32_t>& tokens) {
  ASSERT_EQ(tokens.size(), c.tokens.size());
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] == c.tokens[i]) continue;
    // After a tie that float32 decides otherwise nothing can be compared.
    if (std::find(c.ambiguous.begin(), c.ambiguous.end(), static_cast<int32_t>(i)) != c.ambiguous.end())
      return;
    FAIL() << "token " << i << " is " << tokens[i] << ", expected " << c.tokens[i];
  }
}

class GoldenTest : public testing::TestWithParam<const char*> {};

TEST_P(GoldenTest, MatchesTransformersOnOneToFourRanks) {
  const std::string folder = std::string("tests/data/") + GetParam();
  const std::vector<Case> cases = ReadCases(folder);
  ASSERT_GE(cases.size(), 3u);
  std::vector<MiniRequest> requests;
  for (const Case& c : cases) {
    MiniRequest request{c.prompt, static_cast<int32_t>(c.tokens.size())};
    request.sampling.set_num_prompt_logprobs(0);
    requests.push_back(request);
  }
  ModelRunnerOptions options;
  options.dtype = DataType::kF32;
  options.max_num_seqs = 8;
  options.max_num_batched_tokens = 128;
  options.max_model_len = std::string(GetParam()).rfind("tiny/", 0) == 0 ? 256 : 100;
  MiniOptions run;
  run.max_step_tokens = 128;
  run.num_blocks = 128;
  for (int world_size = 1; world_size <= 4; ++world_size) {
    SCOPED_TRACE(testing::Message() << GetParam() << " on " << world_size << " ranks");
    auto group = RankGroup::Load(folder, world_size, options, run.num_blocks);
    ASSERT_TRUE(group.ok()) << group.status();
    const auto results = RunAll(**group, requests, run);
    ASSERT_TRUE(results.ok()) << results.status();
    double worst = 0;
    for (size_t i = 0; i < cases.size(); ++i) {
      SCOPED_TRACE(testing::Message() << "case " << i);
      const MiniResult& result = (*results)[i];
      ASSERT_EQ(result.prompt_logprobs.size(), cases[i].prompt_logprobs.size());
      for (size_t j = 0; j < cases[i].prompt_logprobs.size(); ++j) {
        EXPECT_EQ(result.prompt_logprobs[j].token_ids(0), cases[i].prompt[j + 1]);
        const double difference =
            std::abs(result.prompt_logprobs[j].logprobs(0) - cases[i].prompt_logprobs[j]);
        worst = std::max(worst, std::isnan(difference) ? 1e9 : difference);
      }
      ExpectTokens(cases[i], result.tokens);
    }
    EXPECT_LT(worst, kTolerance);
    RecordProperty(("worst_" + std::to_string(world_size)).c_str(), std::to_string(worst));
  }
}

INSTANTIATE_TEST_SUITE_P(Checkpoints, GoldenTest,
                         testing::Values("tiny/llama-uneven", "tiny/llama-rope3", "tiny/qwen2", "tiny/qwen3",
                                         "tiny/opt", "variants/llama-mqa-bias", "variants/llama-seven",
                                         "variants/qwen2-seven", "variants/qwen3-untied",
                                         "variants/opt-postnorm"));

}  // namespace
}  // namespace somnus
