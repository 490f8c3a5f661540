// Every tiny checkpoint, on one to four ranks in fp32 and in float16, against what transformers computes from
// the same weights.
#include "tests/model/golden.h"

#include <string>

#include "gtest/gtest.h"

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
// bits less, and not equal to it.
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

INSTANTIATE_TEST_SUITE_P(Checkpoints, GoldenTest,
                         testing::Values("tiny/llama-uneven", "tiny/llama-rope3", "tiny/qwen2", "tiny/qwen3",
                                         "tiny/opt", "variants/llama-mqa-bias", "variants/llama-seven",
                                         "variants/qwen2-seven", "variants/qwen3-untied",
                                         "variants/opt-postnorm"));

}  // namespace
}  // namespace somnus
