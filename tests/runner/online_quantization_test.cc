// Models whose layers are quantized at load (--quantization), and models of packed checkpoints: the types of
// the computation, how near the results are, sleep, reload and updates.

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
  auto results = RunAll(group, {request}, MiniOptions{.max_step_tokens = 128, .num_blocks = 64});
  EXPECT_TRUE(results.ok()) << results.status();
  return results.ok() ? (*results)[0] : MiniResult();
}

TEST(OnlineQuantization, IsOfTheLayersMatricesAlone) {
  const auto int8 = Load(kModel, 1, Options(DataType::kQ8_0)),
             int4 = Load(kModel, 1, Options(DataType::kQ4_1)),
             fp8 = Load(kModel, 1, Options(DataType::kF8E4M3));
  ASSERT_TRUE(int8 && int4 && fp8);
  // The embedding and the output matrix have 512 x 64 numbers each, in f32.
  EXPECT_THAT(int8->runner(0).weight_types(), HasSubstr("float32 0.2 MiB"));
  EXPECT_THAT(int8->runner(0).weight_types(), HasSubstr("Q8_0 0.1 MiB"));
  EXPECT_THAT(int4->runner(0).weight_types(), HasSubstr("Q4_1 0."));
  EXPECT_THAT(fp8->runner(0).weight_types(), HasSubstr("fp8_e4m3 0.1 MiB"));
  EXPECT_THAT(fp8->runner(0).weight_types(), HasSubstr("float32 0.2 MiB"));
}

// Five bits in the file, so that int8 adds little to the error of the activations.
TEST(OnlineQuantization, IsNearTheModelOnAnyNumberOfRanks) {
  const std::string path =
      WriteQuantizedGguf({.layers = StorageType::kQ5_1, .embedding = StorageType::kQ8_0});
  const auto exact = Load(path, 1, Options(std::nullopt));
  ASSERT_TRUE(exact);
  const std::vector<float> reference = PromptLogprobs(RunOne(*exact));
  std::vector<float> one_rank;
  for (const int world_size : {1, 2, 4}) {
    const auto int8 = Load(path, world_size, Options(DataType::kQ8_0));
    const auto int4 = Load(path, world_size, Options(DataType::kQ4_1));
    const auto fp8 = Load(path, world_size, Options(DataType::kF8E4M3));
    ASSERT_TRUE(int8 && int4 && fp8);
    const double of_int8 = MeanDifference(PromptLogprobs(RunOne(*int8)), reference);
    const double of_int4 = MeanDifference(PromptLogprobs(RunOne(*int4)), reference);
    EXPECT_LT(of_int8, 0.1) << world_size;
    EXPECT_GT(of_int8, 1e-5) << "nothing was quantized";
    EXPECT_LT(of_int4, 1.0) << world_size;
    EXPECT_GT(of_int4, of_int8);
    // Numbers of four significant bits, with activations that are not rounded.
    const std::vector<float> got = PromptLogprobs(RunOne(*fp8));
    const double of_fp8 = MeanDifference(got, reference);
    EXPECT_LT(of_fp8, 0.7) << world_size;
    EXPECT_GT(of_fp8, 1e-5) << "nothing was quantized";
    if (world_size == 1) one_rank = got;
    // Two ranks have the same numbers, also of the rows that are cut; four cut blocks, which stay exact.
    if (world_size == 2) {
      EXPECT_LT(MeanDifference(got, one_rank), 1e-4);
    }
  }
}

// 96 columns over two ranks are 48 and 48: no whole blocks.
TEST(OnlineQuantization, WhatAShardCutsWithinABlockStaysAsItIs) {
  const auto one = Load(kModel, 1, Options(DataType::kQ8_0)), two = Load(kModel, 2, Options(DataType::kQ8_0));
  ASSERT_TRUE(one && two);
  EXPECT_LT(MeanDifference(PromptLogprobs(RunOne(*two)), PromptLogprobs(RunOne(*one))), 0.2);
}

TEST(OnlineQuantization, SleepsAndWakesAtBothLevels) {
  for (const DataType type : {DataType::kQ8_0, DataType::kQ4_1, DataType::kF8E4M3}) {
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
  for (const DataType type : {DataType::kQ4_1, DataType::kF8E4M3}) {
    const auto loaded = Load(kModel, 2, Options(type));
    const auto updated = Load(kModel, 2, Options(type), LoadFormat::kDummy);
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
}

// With activations of f32 nothing is rounded but sums: the stored numbers are computed, with either flag.
TEST(PackedModel, OfFp8IsExactAsItIsStored) {
  for (const char* name : {"fp8", "fp8-blocks", "compressed-fp8"}) {
    const auto expanded = Load(PackedGolden(name), 1, Options(std::nullopt));
    ASSERT_TRUE(expanded);
    EXPECT_THAT(expanded->runner(0).weight_types(), Not(HasSubstr("fp8")));
    const std::vector<float> reference = PromptLogprobs(RunOne(*expanded));
    // Four ranks have fewer than 32 rows or columns of the matrices, which are then expanded.
    for (const int world_size : {1, 2, 4}) {
      SCOPED_TRACE(testing::Message() << name << ", " << world_size << " ranks");
      const auto stored = Load(PackedGolden(name), world_size, Options(std::nullopt, /*dequantize=*/false));
      const auto named = Load(PackedGolden(name), world_size, Options(DataType::kF8E4M3, false));
      ASSERT_TRUE(stored && named);
      if (world_size < 4) {
        EXPECT_THAT(stored->runner(0).weight_types(), HasSubstr("fp8_e4m3"));
        EXPECT_THAT(named->runner(0).weight_types(), HasSubstr("fp8_e4m3"));
      }
      EXPECT_LT(MeanDifference(PromptLogprobs(RunOne(*stored)), reference), 1e-4);
      if (world_size == 1) {
        ExpectSame(RunOne(*named), RunOne(*stored));
        const auto online = Load(PackedGolden(name), 1, Options(DataType::kF8E4M3));
        ASSERT_TRUE(online);
        ExpectSame(RunOne(*online), RunOne(*stored));
      }
    }
  }
}

TEST(PackedModel, IsComputedAsItIsStoredOrExpanded) {
  for (const auto& [name, type] : PackedGoldens()) {
    SCOPED_TRACE(name);
    const auto expanded = Load(PackedGolden(name), 1, Options(std::nullopt));
    const auto stored = Load(PackedGolden(name), 1, Options(std::nullopt, /*dequantize=*/false));
    ASSERT_TRUE(expanded && stored);
    const std::string types = stored->runner(0).weight_types();
    EXPECT_EQ(types.find("Q") != std::string::npos,
              type != StorageType::kF32 && type != StorageType::kF8E4M3);
    EXPECT_EQ(types.find("fp8") != std::string::npos, type == StorageType::kF8E4M3);
    EXPECT_THAT(expanded->runner(0).weight_types(), Not(HasSubstr("Q")));
    const std::vector<float> reference = PromptLogprobs(RunOne(*expanded));
    for (const int world_size : {1, 2}) {
      const auto group = Load(PackedGolden(name), world_size, Options(std::nullopt, /*dequantize=*/false));
      ASSERT_TRUE(group);
      // Activations are off by 0.3 % of the largest in the block.
      EXPECT_LT(MeanDifference(PromptLogprobs(RunOne(*group)), reference), 0.15) << world_size;
    }
  }
}

// Weights that no block can hold as stored can be quantized anew.
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
  for (const char* name : {"gptq4-zeros", "fp8-blocks"}) {
    const auto group = Load(PackedGolden(name), 1, Options(std::nullopt, /*dequantize=*/false));
    ASSERT_TRUE(group);
    const MiniResult before = RunOne(*group);
    ASSERT_EQ(group->SleepAndWake(RestoreMode::kDiscard), absl::OkStatus());
    ExpectSame(RunOne(*group), before);
  }
}

}  // namespace
}  // namespace somnus
