// Stages of a pipeline compute the bits of one stage: tokens, log-probabilities, pooled vectors and the
// self-check, for every family's layers and every split of the layers.

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/runner/mini_engine.h"

namespace somnus {
namespace {

using testing::HasSubstr;

constexpr char kUneven[] = "tests/data/tiny/llama-uneven";

struct Split {
  int world_size = 1;
  int num_stages = 1;
  std::vector<int32_t> stage_layers = {};
};

absl::StatusOr<std::unique_ptr<RankGroup>> Load(const std::string& model, const Split& split,
                                                DataType dtype = DataType::kF32) {
  ModelRunnerOptions options = SmallRunnerOptions();
  options.dtype = dtype;
  options.max_model_len = 96;  // the post-norm model has 100 positions
  options.pipeline.num_stages = split.num_stages;
  options.pipeline.stage_layers = split.stage_layers;
  return RankGroup::Load(model, split.world_size, options, 64);
}

v1::StepSampling Sampling(float temperature) {
  v1::StepSampling sampling = GreedySampling();
  sampling.set_num_logprobs(2);
  sampling.set_temperature(temperature);
  if (temperature > 0) sampling.set_repetition_penalty(1.2f);
  return sampling;
}

// Short and long prompts; greedy, at random with penalties, with log-probabilities of the prompt.
std::vector<MiniRequest> Requests(int32_t vocab_size) {
  std::vector<MiniRequest> requests(4);
  for (size_t i = 0; i < requests.size(); ++i) {
    for (int32_t k = 0; k < 3 + 9 * static_cast<int32_t>(i); ++k)
      requests[i].prompt.push_back((7 * k + 3 * static_cast<int32_t>(i) + 1) % vocab_size);
    requests[i].max_tokens = 9;
    requests[i].seed = i;
    requests[i].sampling = Sampling(i % 2 == 0 ? 0 : 0.8f);
  }
  requests[2].sampling.set_num_prompt_logprobs(1);
  return requests;
}

MiniOptions InChunks() {
  MiniOptions options{.chunk = 13, .max_running = 3, .max_step_tokens = 64, .num_blocks = 64};
  return options;
}

std::string TextOf(const std::vector<MiniResult>& results) {
  std::string text;
  for (const MiniResult& result : results) {
    for (const int32_t token : result.tokens) absl::StrAppend(&text, token, " ");
    for (const auto* list : {&result.logprobs, &result.prompt_logprobs}) {
      for (const v1::StepLogprobs& one : *list) absl::StrAppend(&text, one.SerializeAsString());
    }
    absl::StrAppend(&text, result.error.ToString(), "\n");
  }
  return text;
}

std::string Generate(const std::string& model, const Split& split, DataType dtype = DataType::kF32) {
  const auto group = Load(model, split, dtype);
  EXPECT_TRUE(group.ok()) << group.status();
  if (!group.ok()) return "";
  const auto results = RunAll(**group, Requests((*group)->config().vocab_size), InChunks());
  EXPECT_TRUE(results.ok()) << results.status();
  return results.ok() ? TextOf(*results) : "";
}

class PipelineTest : public testing::TestWithParam<const char*> {};

// Learned positions, tied embeddings, windows, norms of all kinds, the norm after the block, experts on some
// layers, latent attention, and sinks.
INSTANTIATE_TEST_SUITE_P(Models, PipelineTest,
                         testing::Values("tiny/llama-uneven", "tiny/opt", "tiny/qwen2", "variants/gemma3",
                                         "variants/olmo3", "variants/opt-postnorm", "variants/qwen3-moe",
                                         "variants/deepseek-v3", "variants/gpt-oss"),
                         [](const auto& info) {
                           std::string name = info.param;
                           for (char& c : name) c = isalnum(c) ? c : '_';
                           return name;
                         });

TEST_P(PipelineTest, ComputesTheBitsOfOneStage) {
  const std::string model = absl::StrCat("tests/data/", GetParam());
  const std::string expected = Generate(model, {});
  EXPECT_GT(expected.size(), 100u);
  EXPECT_EQ(Generate(model, {.world_size = 2, .num_stages = 2}), expected);
}

TEST(PipelineSplitsTest, ComputeTheBitsOfOneStage) {
  const std::string model = "tests/data/variants/olmo3";
  const std::string expected = Generate(model, {});
  EXPECT_EQ(Generate(model, {.world_size = 3, .num_stages = 3}), expected);
  EXPECT_EQ(Generate(model, {.world_size = 2, .num_stages = 2, .stage_layers = {1, 3}}), expected);
}

TEST(PipelineSplitsTest, DivideLayersAndHeads) {
  const std::string expected = Generate(kUneven, {.world_size = 2});
  EXPECT_EQ(Generate(kUneven, {.world_size = 4, .num_stages = 2}), expected);
}

TEST(PipelineSplitsTest, SendTheStreamUnrounded) {
  EXPECT_EQ(Generate(kUneven, {.world_size = 2, .num_stages = 2}, DataType::kBF16),
            Generate(kUneven, {}, DataType::kBF16));
}

TEST(PipelineStagesTest, TakeTheirPartsOfTheMemory) {
  const auto whole = Load("tests/data/tiny/qwen2", {});
  const auto stages = Load("tests/data/tiny/qwen2", {.world_size = 2, .num_stages = 2});
  ASSERT_TRUE(whole.ok() && stages.ok()) << whole.status() << stages.status();
  const auto weights = [](RankGroup& group, int rank) {
    int64_t bytes = 0;
    for (const WeightPiece& piece : group.runner(rank).weight_pieces()) bytes += piece.bytes;
    return bytes;
  };
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(2 * (*stages)->runner(rank).kv_block_bytes(), (*whole)->runner(0).kv_block_bytes());
    EXPECT_LT(weights(**stages, rank), weights(**whole, 0));
  }
  // Both stages have the tied embedding: the first for tokens, the last as the head.
  int64_t embeddings = 0;
  for (int rank = 0; rank < 2; ++rank) {
    for (const WeightPiece& piece : (*stages)->runner(rank).weight_pieces())
      embeddings += piece.name == "model.embed_tokens.weight";
  }
  EXPECT_EQ(embeddings, 2);
}

TEST(PipelineStagesTest, PoolAndCheckThemselvesOnTheLast) {
  const auto whole = Load(kUneven, {}), stages = Load(kUneven, {.world_size = 2, .num_stages = 2});
  ASSERT_TRUE(whole.ok() && stages.ok()) << whole.status() << stages.status();
  std::vector<MiniRequest> requests(1);
  requests[0] = {.prompt = {1, 2, 3, 4, 5}, .max_tokens = 0, .pooling = v1::STEP_POOLING_MEAN};
  const auto expected = RunAll(**whole, requests, InChunks()), got = RunAll(**stages, requests, InChunks());
  ASSERT_TRUE(expected.ok() && got.ok()) << expected.status() << got.status();
  EXPECT_FALSE((*expected)[0].pooled.empty());
  EXPECT_EQ((*got)[0].pooled, (*expected)[0].pooled);
  const auto check = (*whole)->SelfCheck(), staged = (*stages)->SelfCheck();
  ASSERT_TRUE(check.ok() && staged.ok()) << check.status() << staged.status();
  EXPECT_EQ(*staged, *check);
}

TEST(PipelineStagesTest, SleepAndWakeUpAtBothLevels) {
  const auto group = Load(kUneven, {.world_size = 2, .num_stages = 2});
  ASSERT_TRUE(group.ok()) << group.status();
  const auto run = [&] {
    const auto results = RunAll(**group, Requests((*group)->config().vocab_size), InChunks());
    return results.ok() ? TextOf(*results) : results.status().ToString();
  };
  const std::string expected = run();
  for (const RestoreMode mode : {RestoreMode::kBackup, RestoreMode::kDiscard}) {
    ASSERT_TRUE((*group)->SleepAndWake(mode).ok());
    EXPECT_EQ(run(), expected);
  }
}

TEST(PipelineStagesTest, RefuseSplitsThatDoNotFitTheModel) {
  EXPECT_THAT(Load(kUneven, {.world_size = 3, .num_stages = 3}).status().message(),
              HasSubstr("--pipeline-parallel-size: 3 stages, but the model has 2 layers"));
  EXPECT_THAT(Load(kUneven, {.world_size = 2, .num_stages = 2, .stage_layers = {2, 1}}).status().message(),
              HasSubstr("--pipeline-layer-partition"));
}

}  // namespace
}  // namespace somnus
