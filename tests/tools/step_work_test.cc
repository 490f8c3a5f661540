// What a step reads and computes, by which decode_bench divides.

#include "tools/bench/decode/step_work.h"

#include <gtest/gtest.h>

#include "checkpoint/checkpoint.h"

namespace somnus {
namespace {

TEST(StepWork, CountsTheMatricesOfACheckpoint) {
  const auto checkpoint = Checkpoint::Open("tests/data/tiny/llama-rope3");
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  const ModelWork work = WorkOf(**checkpoint);
  EXPECT_EQ(work.layer_weights, 2 * (64 * (64 + 16 + 16 + 64) + 3 * 64 * 96));
  EXPECT_EQ(work.head_weights, 512 * 64) << "the head alone, though the embedding is another matrix";
  EXPECT_EQ(work.attention_width, 2 * 64);
  EXPECT_FALSE(work.stored_as_bytes);
}

TEST(StepWork, SaysWhatIsMultipliedAsBytes) {
  const auto int4 = Checkpoint::Open("tests/data/packed/gptq4");
  ASSERT_TRUE(int4.ok()) << int4.status();
  EXPECT_TRUE(WorkOf(**int4).stored_as_bytes);
  const auto fp8 = Checkpoint::Open("tests/data/packed/fp8-blocks");
  ASSERT_TRUE(fp8.ok()) << fp8.status();
  EXPECT_FALSE(WorkOf(**fp8).stored_as_bytes);
}

// 100 weights in the layers and 10 in the head, queries of 8 values.
constexpr ModelWork kWork = {.layer_weights = 100,
                             .head_weights = 10,
                             .attention_width = 8,
                             .weights_bytes = 1000,
                             .kv_token_bytes = 4};

TEST(StepWork, APromptIsEveryTokenByEachWeightAndItsPairs) {
  // 3 tokens have 6 pairs of a query and a key up to it.
  EXPECT_EQ(PrefillFlops(kWork, 1, 3), 3 * 200 + 20 + 6 * 4 * 8);
  EXPECT_EQ(PrefillFlops(kWork, 5, 3), 5 * PrefillFlops(kWork, 1, 3));
}

TEST(StepWork, AStepLooksBackAtWhatIsThereByThen) {
  // Behind a prompt of 10 three steps see 11, 12 and 13 tokens.
  EXPECT_EQ(DecodeFlops(kWork, 2, 10, 3), 2 * (220 + 12 * 4 * 8));
  EXPECT_EQ(DecodeBytes(kWork, 2, 10, 3), 1000 + 2 * 12 * 4) << "weights once, the cache for each sequence";
}

}  // namespace
}  // namespace somnus
