// A model that is computed as the GGUF file stores the weights: the types, how near the results are to
// results of dequantized weights, and sleep. invariance_test.cc has the batch invariance.
#include <algorithm>
#include <string>

#include "checkpoint/storage_type.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/runner/near_logprobs.h"
#include "tests/runner/quantized_gguf.h"
#include "tests/runner/same_bits.h"

namespace somnus {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

ModelRunnerOptions Options(bool dequantize = false) {
  ModelRunnerOptions options;
  options.dtype = DataType::kF32;
  options.dequantize = dequantize;
  options.max_num_seqs = 4;
  options.max_num_batched_tokens = 128;
  options.max_model_len = 256;
  return options;
}

std::unique_ptr<RankGroup> Load(const std::string& path, int world_size, const ModelRunnerOptions& options) {
  auto group = RankGroup::Load(path, world_size, options, 64);
  EXPECT_TRUE(group.ok()) << group.status();
  return group.ok() ? *std::move(group) : nullptr;
}

MiniRequest LongRequest() {
  MiniRequest request;
  for (int32_t i = 0; i < 96; ++i) request.prompt.push_back(i * 37 % 512);
  request.max_tokens = 8;
  request.sampling.set_num_logprobs(2);
  request.sampling.set_num_prompt_logprobs(2);
  return request;
}

MiniResult RunLong(RankGroup& group) {
  auto results = RunAll(group, {LongRequest()}, MiniOptions{.max_step_tokens = 128, .num_blocks = 64});
  EXPECT_TRUE(results.ok()) << results.status();
  return results.ok() ? (*results)[0] : MiniResult();
}

TEST(QuantizedModel, IsComputedAsItIsStored) {
  const std::string path = WriteQuantizedGguf({.layers = StorageType::kQ4_1});
  const auto stored = Load(path, 1, Options()), expanded = Load(path, 1, Options(/*dequantize=*/true));
  ASSERT_TRUE(stored && expanded);
  // Two layers of 20 bytes for 32 values, and the embedding of 34; the head is the same matrix.
  EXPECT_EQ(stored->runner(0).weight_types(), "Q4_1 0.1 MiB, Q8_0 0.1 MiB");
  EXPECT_EQ(expanded->runner(0).weight_types(), "float32 1.2 MiB");
}

TEST(QuantizedModel, KTypesTakeTheBytesOfTheFile) {
  const auto group = Load(WriteQuantizedGguf({.layers = StorageType::kQ4_K,
                                              .embedding = StorageType::kQ6_K,
                                              .hidden = 256,
                                              .intermediate = 512}),
                          1, Options());
  ASSERT_TRUE(group);
  // 1179648 values in blocks of 144 bytes, 131072 in blocks of 210.
  EXPECT_EQ(group->runner(0).weight_types(), "Q4_K 0.6 MiB, Q6_K 0.1 MiB");
}

TEST(QuantizedModel, IsNearTheDequantizedOne) {
  for (const StorageType type :
       {StorageType::kQ8_0, StorageType::kQ4_0, StorageType::kQ4_1, StorageType::kQ5_0, StorageType::kQ5_1,
        StorageType::kIQ4_NL, StorageType::kMXFP4, StorageType::kQ2_K, StorageType::kQ3_K, StorageType::kQ4_K,
        StorageType::kQ5_K, StorageType::kQ6_K}) {
    const bool large = BlockSizeOf(type).elements == 256;
    const std::string path = WriteQuantizedGguf({.layers = type,
                                                 .embedding = large ? type : StorageType::kQ8_0,
                                                 .hidden = large ? 256 : 128,
                                                 .intermediate = large ? 512 : 192});
    const auto expanded = Load(path, 1, Options(/*dequantize=*/true));
    ASSERT_TRUE(expanded);
    const std::vector<float> reference = PromptLogprobs(RunLong(*expanded));
    for (const int world_size : {1, 2, 3, 4}) {
      SCOPED_TRACE(testing::Message() << "type " << static_cast<int>(type) << ", ranks " << world_size);
      const auto stored = Load(path, world_size, Options());
      ASSERT_TRUE(stored);
      const double difference = MeanDifference(PromptLogprobs(RunLong(*stored)), reference);
      // Each activation is off by 0.3 % of the largest in the block; a part that is left out gives 0.5 and
      // more.
      EXPECT_LT(difference, 0.05);
      EXPECT_GT(difference, 1e-5) << "nothing was quantized";
    }
  }
}

// GPT-OSS's experts, in its own file and in llama.cpp's, which has a block's halves in other nibbles. Ranks
// have a part of each expert, of which some cut blocks, or whole experts.
TEST(QuantizedModel, Mxfp4ExpertsAreNearTheDequantizedOnes) {
  MiniRequest request;
  for (int32_t i = 0; i < 60; ++i) request.prompt.push_back(i * 37 % 130);
  request.max_tokens = 4;
  request.sampling.set_num_prompt_logprobs(1);
  const auto run = [&](const std::string& path, int ranks, const ModelRunnerOptions& options) {
    const auto group = Load("tests/data/" + path, ranks, options);
    if (group == nullptr) return std::vector<float>();
    EXPECT_EQ(options.dequantize, group->runner(0).weight_types().find("MXFP4") == std::string::npos);
    const auto results = RunAll(*group, {request}, MiniOptions{.max_step_tokens = 128, .num_blocks = 64});
    EXPECT_TRUE(results.ok()) << results.status();
    return results.ok() ? PromptLogprobs((*results)[0]) : std::vector<float>();
  };
  std::vector<std::vector<float>> of_one_rank;
  for (const std::string path : {"variants/gpt-oss-mxfp4", "variants/gpt-oss-mxfp4-seven",
                                 "gguf_variants/gpt-oss-mxfp4-seven/model.gguf"}) {
    ModelRunnerOptions options = Options(/*dequantize=*/true);
    options.max_model_len = 128;
    const std::vector<float> reference = run(path, 1, options);
    options.dequantize = false;
    of_one_rank.push_back(run(path, 1, options));
    for (const int ranks : {1, 2, 3}) {
      for (const bool whole : {false, true}) {
        SCOPED_TRACE(testing::Message() << path << ", ranks " << ranks << (whole ? ", whole experts" : ""));
        options.expert_parallel = whole;
        const double difference = MeanDifference(run(path, ranks, options), reference);
        EXPECT_LT(difference, 0.05);
        EXPECT_GT(difference, 1e-5) << "nothing was quantized";
      }
    }
  }
  EXPECT_EQ(of_one_rank[1], of_one_rank[2]) << "the two files have the same blocks";
}

// Q4_K_M's files have q and k in one type, v in another: each is computed as stored, whichever part falls to
// a rank.
TEST(QuantizedModel, ComputesFusedMatricesOfSeveralTypes) {
  const std::string path = WriteQuantizedGguf({.layers = StorageType::kQ4_K,
                                               .embedding = StorageType::kQ6_K,
                                               .values = StorageType::kQ6_K,
                                               .gate = StorageType::kQ5_0,
                                               .hidden = 256,
                                               .intermediate = 512});
  const auto expanded = Load(path, 1, Options(/*dequantize=*/true));
  ASSERT_TRUE(expanded);
  const std::vector<float> reference = PromptLogprobs(RunLong(*expanded));
  for (const int world_size : {1, 2, 3}) {
    const auto stored = Load(path, world_size, Options());
    ASSERT_TRUE(stored);
    EXPECT_LT(MeanDifference(PromptLogprobs(RunLong(*stored)), reference), 0.05) << world_size << " ranks";
    if (world_size > 1) continue;
    // A layer has 425984 values in Q4_K, 131072 in Q5_0 and 32768 in Q6_K, as the embedding is.
    EXPECT_EQ(stored->runner(0).weight_types(), "Q4_K 0.5 MiB, Q5_0 0.2 MiB, Q6_K 0.2 MiB");
  }
}

// 160 columns over two ranks are 80 and 80: no whole blocks. Only the matrix that is cut there is expanded.
TEST(QuantizedModel, ExpandsWhatAShardCutsWithinABlock) {
  const std::string path = WriteQuantizedGguf({.layers = StorageType::kQ4_0, .intermediate = 160});
  const auto one = Load(path, 1, Options()), two = Load(path, 2, Options());
  const auto expanded = Load(path, 1, Options(/*dequantize=*/true));
  ASSERT_TRUE(one && two && expanded);
  EXPECT_THAT(one->runner(0).weight_types(), Not(HasSubstr("float32")));
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_THAT(two->runner(rank).weight_types(), HasSubstr("float32"));
    EXPECT_THAT(two->runner(rank).weight_types(), HasSubstr("Q4_0"));
  }
  EXPECT_LT(MeanDifference(PromptLogprobs(RunLong(*two)), PromptLogprobs(RunLong(*expanded))), 0.05);
}

// Each of two ranks has half a block of a K type of the 256 columns of the attention's output; the MLP's 512
// columns are two whole blocks.
TEST(QuantizedModel, ExpandsWhatAShardCutsWithinABlockOf256) {
  const QuantizedGguf model = {.layers = StorageType::kQ6_K, .hidden = 256, .intermediate = 512};
  const std::string path = WriteQuantizedGguf(model);
  const auto two = Load(path, 2, Options()), expanded = Load(path, 1, Options(/*dequantize=*/true));
  ASSERT_TRUE(two && expanded);
  for (int rank = 0; rank < 2; ++rank) {
    // Two layers of 256 x 128 floats; and of 256 + 256 rows, 512 twice, of 256 values, halved.
    EXPECT_THAT(two->runner(rank).weight_types(), HasSubstr("float32 0.2 MiB"));
    EXPECT_THAT(two->runner(rank).weight_types(), HasSubstr("Q6_K 0.4 MiB"));
  }
  EXPECT_LT(MeanDifference(PromptLogprobs(RunLong(*two)), PromptLogprobs(RunLong(*expanded))), 0.05);
}

TEST(QuantizedModel, SleepsAndWakesAtBothLevels) {
  const std::string path = WriteQuantizedGguf({.layers = StorageType::kQ5_1});
  const auto group = Load(path, 2, Options());
  ASSERT_TRUE(group);
  const MiniResult before = RunLong(*group);
  for (const RestoreMode weights : {RestoreMode::kBackup, RestoreMode::kDiscard}) {
    const absl::Status woken = group->SleepAndWake(weights);
    ASSERT_TRUE(woken.ok()) << woken;
    ExpectSame(RunLong(*group), before);
  }
}

TEST(QuantizedModel, ReloadsOnlyWeightsOfTheSameTypes) {
  const auto group = Load(WriteQuantizedGguf({.layers = StorageType::kQ4_0}), 1, Options());
  ASSERT_TRUE(group);
  const auto reload = [&](const QuantizedGguf& model) {
    const auto checkpoint = Checkpoint::Open(WriteQuantizedGguf(model));
    EXPECT_TRUE(checkpoint.ok()) << checkpoint.status();
    return group->runner(0).ReloadWeights(**checkpoint, nullptr);
  };
  EXPECT_TRUE(reload({.layers = StorageType::kQ4_0, .seed = 2}).ok());
  EXPECT_THAT(reload({.layers = StorageType::kQ4_1}).message(),
              HasSubstr("is not the model that was loaded"));
}

}  // namespace
}  // namespace somnus
