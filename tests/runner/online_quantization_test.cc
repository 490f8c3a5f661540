// Models whose layers are quantized at load (--quantization), and models of packed checkpoints: the types
// that they are computed in, how near the results are, sleep, reload and updates.

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/checkpoint/packed_weights.h"
#include "tests/model/weight_chunks.h"
#include "tests/runner/mini_engine.h"
#include "tests/runner/near_logprobs.h"
#include "tests/runner/quantized_gguf.h"
#include "tests/runner/rank_group.h"
#include "tests/runner/same_bits.h"

namespace somnus {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kModel[] = "tests/data/tiny/llama-rope3";

ModelRunnerOptions Options(std::optional<DataType> quantize, bool dequantize = true) {
  ModelRunnerOptions options;
  options.dtype = DataType::kF32;
  options.dequantize = dequantize;
  options.quantize = quantize;
  options.max_num_seqs = 4;
  options.max_num_batched_tokens = 128;
  options.max_model_len = 128;
  return options;
}

std::unique_ptr<RankGroup> Load(const std::string& path, int world_size, const ModelRunnerOptions& options,
                                LoadFormat format = LoadFormat::kAuto) {
  auto group = RankGroup::Load(path, world_size, options, 64, CpuRanks(), format);
  EXPECT_TRUE(group.ok()) << group.status();
  return group.ok() ? *std::move(group) : nullptr;
}

MiniResult RunOne(RankGroup& group) {
  MiniRequest request;
  for (int32_t i = 0; i < 64; ++i) request.prompt.push_back(i * 37 % group.config().vocab_size);
  request.max_tokens = 8;
  request.sampling.set_num_logprobs(2);
  request.sampling.set_num_prompt_logprobs(2);
  MiniOptions options;
  options.num_blocks = 64;
  options.max_step_tokens = 128;
  auto results = RunAll(group, {request}, options);
  EXPECT_TRUE(results.ok()) << results.status();
  return results.ok() ? (*results)[0] : MiniResult();
}

TEST(OnlineQuantization, IsOfTheLayersMatricesAlone) {
  const auto int8 = Load(kModel, 1, Options(DataType::kQ8_0)),
             int4 = Load(kModel, 1, Options(DataType::kQ4_1));
  ASSERT_TRUE(int8 && int4);
  // The embedding and the output matrix have 512 x 64 numbers each, in f32.
  EXPECT_THAT(int8->runner(0).weight_types(), HasSubstr("float32 0.2 MiB"));
  EXPECT_THAT(int8->runner(0).weight_types(), HasSubstr("Q8_0 0.1 MiB"));
  EXPECT_THAT(int4->runner(0).weight_types(), HasSubstr("Q4_1 0."));
}

// Five bits in the file, so that int8 adds little to the error of the activations.
TEST(OnlineQuantization, IsNearTheModelOnAnyNumberOfRanks) {
  const std::string path =
      WriteQuantizedGguf({.layers = StorageType::kQ5_1, .embedding = StorageType::kQ8_0});
  const auto exact = Load(path, 1, Options(std::nullopt));
  ASSERT_TRUE(exact);
  const std::vector<float> reference = PromptLogprobs(RunOne(*exact));
  for (const int world_size : {1, 2}) {
    const auto int8 = Load(path, world_size, Options(DataType::kQ8_0));
    const auto int4 = Load(path, world_size, Options(DataType::kQ4_1));
    ASSERT_TRUE(int8 && int4);
    const double of_int8 = MeanDifference(PromptLogprobs(RunOne(*int8)), reference);
    const double of_int4 = MeanDifference(PromptLogprobs(RunOne(*int4)), reference);
    EXPECT_LT(of_int8, 0.1) << world_size;
    EXPECT_GT(of_int8, 1e-5) << "nothing was quantized";
    EXPECT_LT(of_int4, 1.0) << world_size;
    EXPECT_GT(of_int4, of_int8);
  }
}

// 96 columns over two ranks are 48 and 48: no whole blocks.
TEST(OnlineQuantization, WhatAShardCutsWithinABlockStaysAsItIs) {
  const auto one = Load(kModel, 1, Options(DataType::kQ8_0)), two = Load(kModel, 2, Options(DataType::kQ8_0));
  ASSERT_TRUE(one && two);
  EXPECT_LT(MeanDifference(PromptLogprobs(RunOne(*two)), PromptLogprobs(RunOne(*one))), 0.2);
}

TEST(OnlineQuantization, SleepsAndWakesAtBothLevels) {
  for (const DataType type : {DataType::kQ8_0, DataType::kQ4_1}) {
    const auto group = Load(kModel, 2, Options(type));
    ASSERT_TRUE(group);
    const MiniResult before = RunOne(*group);
    for (const RestoreMode weights : {RestoreMode::kBackup, RestoreMode::kDiscard}) {
      const absl::Status woken = group->SleepAndWake(weights);
      ASSERT_TRUE(woken.ok()) << woken;
      ExpectSame(RunOne(*group), before);
    }
  }
}

TEST(OnlineQuantization, UpdatesAreQuantizedAsTheLoadIs) {
  const auto loaded = Load(kModel, 2, Options(DataType::kQ4_1));
  const auto updated = Load(kModel, 2, Options(DataType::kQ4_1), LoadFormat::kDummy);
  ASSERT_TRUE(loaded && updated);
  const MiniResult want = RunOne(*loaded);
  for (int rank = 0; rank < 2; ++rank) {
    auto update = updated->runner(rank).BeginWeightUpdate(/*needs_all=*/true);
    ASSERT_TRUE(update.ok()) << update.status();
    for (const v1::WeightChunk& chunk : ChunksOf(loaded->checkpoint(), 3000))
      ASSERT_EQ((*update)->Add(chunk), absl::OkStatus());
    ASSERT_EQ((*update)->CheckComplete(), absl::OkStatus());
  }
  ExpectSame(RunOne(*updated), want);
}

TEST(OnlineQuantization, Fp8IsForCheckpointsOfFp8) {
  const auto refused = RankGroup::Load(kModel, 1, Options(DataType::kF8E4M3), 64);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("--quantization=fp8"));
  const auto group = Load(PackedGolden("fp8"), 1, Options(DataType::kF8E4M3));
  ASSERT_TRUE(group);
  EXPECT_THAT(group->runner(0).weight_types(), Not(HasSubstr("Q8_0")));
}

TEST(PackedModel, IsComputedAsItIsStoredOrExpanded) {
  for (const auto& [name, type] : PackedGoldens()) {
    SCOPED_TRACE(name);
    const auto expanded = Load(PackedGolden(name), 1, Options(std::nullopt));
    const auto stored = Load(PackedGolden(name), 1, Options(std::nullopt, /*dequantize=*/false));
    ASSERT_TRUE(expanded && stored);
    const bool blocks = type != StorageType::kF32;
    EXPECT_EQ(stored->runner(0).weight_types().find("Q") != std::string::npos, blocks);
    EXPECT_THAT(expanded->runner(0).weight_types(), Not(HasSubstr("Q")));
    const std::vector<float> reference = PromptLogprobs(RunOne(*expanded));
    for (const int world_size : {1, 2}) {
      const auto group = Load(PackedGolden(name), world_size, Options(std::nullopt, /*dequantize=*/false));
      ASSERT_TRUE(group);
      // Activations are off by 0.3 % of their blocks' largest.
      EXPECT_LT(MeanDifference(PromptLogprobs(RunOne(*group)), reference), 0.15) << world_size;
    }
  }
}

// What no block can hold as it is stored can be quantized anew.
TEST(PackedModel, TakesQuantization) {
  for (const char* name : {"gptq4-order", "fp8-blocks"}) {
    const auto exact = Load(PackedGolden(name), 1, Options(std::nullopt));
    const auto int8 = Load(PackedGolden(name), 1, Options(DataType::kQ8_0));
    ASSERT_TRUE(exact && int8);
    EXPECT_THAT(int8->runner(0).weight_types(), HasSubstr("Q8_0"));
    EXPECT_LT(MeanDifference(PromptLogprobs(RunOne(*int8)), PromptLogprobs(RunOne(*exact))), 0.2) << name;
  }
}

TEST(PackedModel, SleepsAtLevelTwo) {
  const auto group = Load(PackedGolden("gptq4-zeros"), 1, Options(std::nullopt, /*dequantize=*/false));
  ASSERT_TRUE(group);
  const MiniResult before = RunOne(*group);
  ASSERT_EQ(group->SleepAndWake(RestoreMode::kDiscard), absl::OkStatus());
  ExpectSame(RunOne(*group), before);
}

}  // namespace
}  // namespace somnus
