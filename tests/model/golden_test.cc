// Every tiny checkpoint, on one to four ranks in fp32 and in float16, and on every instruction set, against
// the results of transformers from the same weights.
#include "tests/model/golden.h"

#include <string>

#include "gtest/gtest.h"
#include "tests/kernels/kernel_test_util.h"

namespace somnus {
namespace {

class GoldenTest : public testing::TestWithParam<const char*> {
 protected:
  static std::string Folder() { return std::string("tests/data/") + GetParam(); }
};

TEST_P(GoldenTest, MatchesTransformersOnOneToFourRanks) {
  constexpr double kTolerance = 2e-4;  // five times less than the 1e-3 that must hold
  for (int world_size = 1; world_size <= 4; ++world_size) {
    SCOPED_TRACE(testing::Message() << GetParam() << " on " << world_size << " ranks");
    const auto result = RunGolden(Folder(), world_size, DataType::kF32);
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_LT(result->worst, kTolerance);
    EXPECT_EQ(result->mismatch, "");
    RecordProperty(("worst_" + std::to_string(world_size)).c_str(), std::to_string(result->worst));
  }
}

// Weights, activations and KV cache of 16 bits: near the exact result, nearer than bfloat16, which has three
// bits less, and not exact.
TEST_P(GoldenTest, Float16IsNear) {
  for (const int world_size : {1, 2}) {
    SCOPED_TRACE(testing::Message() << GetParam() << " on " << world_size << " ranks");
    const auto half = RunGolden(Folder(), world_size, DataType::kF16);
    ASSERT_TRUE(half.ok()) << half.status();
    const auto brain = RunGolden(Folder(), world_size, DataType::kBF16);
    ASSERT_TRUE(brain.ok()) << brain.status();
    EXPECT_LT(half->worst, 0.05);
    EXPECT_GT(half->worst, 1e-5);
    EXPECT_LT(half->worst, brain->worst);
    RecordProperty(("worst_" + std::to_string(world_size)).c_str(), std::to_string(half->worst));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Checkpoints, GoldenTest,
    testing::Values("tiny/llama-uneven", "tiny/llama-rope3", "tiny/qwen2", "tiny/qwen3", "tiny/opt",
                    "variants/llama-mqa-bias", "variants/llama-seven", "variants/qwen2-seven",
                    "variants/qwen3-untied", "variants/opt-postnorm", "variants/llama-yarn",
                    "variants/qwen3-yarn-mscale", "variants/qwen2-yarn-factor", "variants/mistral-window",
                    "variants/qwen2-window", "variants/phi3-longrope", "variants/phi3-window",
                    "variants/granite", "variants/granite-hybrid", "variants/smollm3",
                    "variants/smollm3-four", "variants/olmo2", "variants/olmo3", "variants/glm4",
                    "variants/glm", "variants/gemma2", "variants/gemma3", "variants/gemma3-wrapped",
                    "variants/ministral3", "variants/qwen3-moe", "variants/qwen2-moe", "variants/mixtral",
                    "variants/glm4-moe", "variants/deepseek-latent", "variants/deepseek-latent-halves",
                    "variants/deepseek-v3", "variants/glm4-moe-lite", "variants/glm4-moe-flash",
                    "variants/gpt-oss", "variants/gpt-oss-mxfp4", "variants/gpt-oss-mxfp4-seven",
                    "variants/mixtral-modules", "variants/qwen2-moe-modules",
                    "variants/deepseek-v3-modules"));

INSTANTIATE_TEST_SUITE_P(GgufFiles, GoldenTest,
                         testing::Values("gguf_variants/mistral-window", "gguf_variants/ministral3",
                                         "gguf_variants/granite", "gguf_variants/granite-hybrid",
                                         "gguf_variants/smollm3-four", "gguf_variants/phi3-longrope",
                                         "gguf_variants/olmo2", "gguf_variants/olmo3", "gguf_variants/glm4",
                                         "gguf_variants/gemma2", "gguf_variants/gemma3",
                                         "gguf_variants/mixtral", "gguf_variants/qwen3-moe",
                                         "gguf_variants/qwen2-moe", "gguf_variants/glm4-moe",
                                         "gguf_variants/gpt-oss", "gguf_variants/deepseek-latent",
                                         "gguf_variants/deepseek-v3", "gguf_variants/glm4-moe-flash",
                                         "gguf_variants/gpt-oss-mxfp4-seven"));

// Whole experts on each rank; a rank may have a single expert or several.
TEST(GoldenExpertsTest, RanksMayDivideTheExperts) {
  for (const char* model :
       {"variants/qwen3-moe", "variants/qwen2-moe", "variants/mixtral", "variants/glm4-moe",
        "variants/deepseek-v3", "variants/glm4-moe-lite", "variants/gpt-oss", "variants/gpt-oss-mxfp4"}) {
    for (int world_size = 2; world_size <= 4; ++world_size) {
      SCOPED_TRACE(testing::Message() << model << " on " << world_size << " ranks");
      const auto result =
          RunGolden(std::string("tests/data/") + model, world_size, DataType::kF32, CpuRanks(), 1000,
                    /*expert_parallel=*/true);
      ASSERT_TRUE(result.ok()) << result.status();
      EXPECT_LT(result->worst, 2e-4);
      EXPECT_EQ(result->mismatch, "");
    }
  }
}

class GoldenOnIsaTest : public testing::TestWithParam<CpuIsa> {};

// Float32 gives the same tokens on every instruction set; 16 bits do but where the best two nearly tie. On
// Zen 4's sets log-probabilities moved by up to 0.039 in float16 and 0.28 in bfloat16, and the tokens parted
// at distances of up to 0.005 and 0.11.
TEST_P(GoldenOnIsaTest, TokensPartAtNearTiesAlone) {
  const struct {
    const char* name;
    DataType type;
    double worst, gap;
  } bounds[] = {{"float32", DataType::kF32, 2e-4, 1e-3},
                {"float16", DataType::kF16, 0.05, 0.05},
                {"bfloat16", DataType::kBF16, 0.5, 0.5}};
  for (const std::string model : {"llama-uneven", "llama-rope3", "qwen2", "qwen3", "opt"}) {
    for (const auto& [name, type, worst, gap] : bounds) {
      SCOPED_TRACE(testing::Message() << model << " in " << name);
      const auto result = RunGolden("tests/data/tiny/" + model, 1, type, CpuRanks(1, GetParam()));
      ASSERT_TRUE(result.ok()) << result.status();
      EXPECT_LT(result->worst, worst);
      EXPECT_LT(result->parted_gap, gap);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Isas, GoldenOnIsaTest, testing::ValuesIn(kernel_test::AvailableIsas()),
                         kernel_test::IsaName);

}  // namespace
}  // namespace somnus
