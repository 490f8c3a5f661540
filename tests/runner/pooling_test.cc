// Vectors of prompts through the whole runner, bitwise: the vectors are made of the final hidden states,
// independent of the chunks, the other sequences and the steps. By batch invariance the state of token i is
// the vector of the first i + 1 tokens with the pooling of the last token, from which the other vectors are
// computed here.

#include <cmath>
#include <random>
#include <string>

#include "absl/strings/str_replace.h"
#include "gtest/gtest.h"
#include "tests/runner/mini_engine.h"

namespace somnus {
namespace {

constexpr int32_t kBlocks = 256;

struct Setup {
  std::string model;
  DataType dtype = DataType::kF32;
};

class PoolingTest : public testing::TestWithParam<Setup> {
 protected:
  static std::unique_ptr<RankGroup> Load(int world_size, int threads = 1) {
    ModelRunnerOptions options = SmallRunnerOptions();
    options.dtype = GetParam().dtype;
    options.max_num_seqs = 64;
    auto group = RankGroup::Load("tests/data/tiny/" + GetParam().model, world_size, options, kBlocks,
                                 CpuRanks(threads));
    EXPECT_TRUE(group.ok()) << group.status();
    return *std::move(group);
  }

  static MiniRequest Request(int32_t vocab_size, int32_t length, v1::StepPooling pooling) {
    std::mt19937 random(11);
    MiniRequest request;
    for (int32_t i = 0; i < length; ++i)
      request.prompt.push_back(static_cast<int32_t>(random() % vocab_size));
    request.max_tokens = 0;
    request.pooling = pooling;
    return request;
  }

  static std::vector<std::vector<float>> Run(RankGroup* group, const std::vector<MiniRequest>& requests,
                                             int32_t chunk) {
    const auto results =
        RunAll(*group, requests, {.chunk = chunk, .max_step_tokens = 64, .num_blocks = kBlocks});
    EXPECT_TRUE(results.ok()) << results.status();
    std::vector<std::vector<float>> vectors;
    for (const MiniResult& result : *results) {
      EXPECT_TRUE(result.error.ok()) << result.error;
      vectors.push_back(result.pooled);
    }
    return vectors;
  }

  // The states of the request's tokens, each computed by a separate request.
  static std::vector<std::vector<float>> States(RankGroup* group, const MiniRequest& request) {
    std::vector<MiniRequest> prefixes;
    for (size_t i = 1; i <= request.prompt.size(); ++i) {
      prefixes.push_back(request);
      prefixes.back().prompt.resize(i);
      prefixes.back().pooling = v1::STEP_POOLING_LAST;
    }
    return Run(group, prefixes, 1 << 20);
  }
};

INSTANTIATE_TEST_SUITE_P(Models, PoolingTest,
                         testing::Values(Setup{"llama-uneven"}, Setup{"qwen2", DataType::kBF16},
                                         Setup{"opt"}),
                         [](const auto& info) {
                           return absl::StrReplaceAll(info.param.model, {{"-", "_"}});
                         });

TEST_P(PoolingTest, VectorsAreMadeOfTheStates) {
  const std::unique_ptr<RankGroup> group = Load(1, /*threads=*/2);
  const int32_t vocab = group->config().vocab_size;
  constexpr int32_t kLength = 45;
  const MiniRequest last = Request(vocab, kLength, v1::STEP_POOLING_LAST);
  const MiniRequest cls = Request(vocab, kLength, v1::STEP_POOLING_CLS);
  const MiniRequest mean = Request(vocab, kLength, v1::STEP_POOLING_MEAN);
  const std::vector<std::vector<float>> states = States(group.get(), last);
  std::vector<float> expected(static_cast<size_t>(group->config().embedding_dim));
  for (const std::vector<float>& state : states) {
    ASSERT_EQ(state.size(), expected.size());
    for (size_t c = 0; c < state.size(); ++c) expected[c] += state[c];
  }
  for (float& x : expected) x /= kLength;
  for (const int32_t chunk : {1, 7, 16, 64}) {
    MiniRequest text = Request(vocab, 20, v1::STEP_POOLING_NONE);
    text.max_tokens = 9;
    const auto vectors = Run(group.get(), {mean, text, last, cls, mean}, chunk);
    EXPECT_EQ(vectors[0], expected) << "chunks of " << chunk;
    EXPECT_EQ(vectors[4], expected) << "chunks of " << chunk;
    EXPECT_EQ(vectors[2], states.back()) << "chunks of " << chunk;
    EXPECT_EQ(vectors[3], states.front()) << "chunks of " << chunk;
    EXPECT_TRUE(vectors[1].empty());
  }
}

TEST_P(PoolingTest, RanksGiveTheSameVectors) {
  std::vector<MiniRequest> requests;
  std::vector<std::vector<float>> expected;
  for (const int world_size : {1, 2, 3, 4}) {
    const std::unique_ptr<RankGroup> group = Load(world_size);
    if (requests.empty()) {
      for (const v1::StepPooling pooling :
           {v1::STEP_POOLING_LAST, v1::STEP_POOLING_CLS, v1::STEP_POOLING_MEAN})
        requests.push_back(Request(group->config().vocab_size, 30, pooling));
      expected = Run(group.get(), requests, 16);
    }
    const auto vectors = Run(group.get(), requests, 16);
    const float tolerance = GetParam().dtype == DataType::kF32 ? 1e-4f : 0.05f;
    for (size_t i = 0; i < vectors.size(); ++i) {
      for (size_t c = 0; c < vectors[i].size(); ++c)
        ASSERT_NEAR(vectors[i][c], expected[i][c], tolerance * (1 + std::abs(expected[i][c]))) << world_size;
    }
    ASSERT_TRUE(group->SleepAndWake(RestoreMode::kBackup).ok());
    EXPECT_EQ(Run(group.get(), requests, 5), vectors) << "after a sleep, of " << world_size << " ranks";
  }
}

}  // namespace
}  // namespace somnus
