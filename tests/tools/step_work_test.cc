// The bytes and the operations of a step, by which decode_bench divides.

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

// Two of three layers have 7 experts of 3 x 20 x 32 weights, of which a token takes 3; embedding and head are
// apart.
TEST(StepWork, CountsTheExpertsOfATokenAlone) {
  const auto checkpoint = Checkpoint::Open("tests/data/variants/qwen3-moe");
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  ASSERT_FALSE((*checkpoint)->config().tie_word_embeddings);
  const double vocab = (*checkpoint)->config().vocab_size * 32;
  const ModelWork work = WorkOf(**checkpoint);
  const double expert = 3 * 20 * 32, dense = 3 * 32 * (48 + 24 + 24 + 48) + 2 * 7 * 32 + 3 * 44 * 32;
  EXPECT_DOUBLE_EQ(work.layer_weights, dense + 2 * 3 * expert);
  EXPECT_DOUBLE_EQ(work.chosen_share, 3.0 / 7);
  EXPECT_DOUBLE_EQ(work.experts_share, 2 * 7 * expert / (dense + 2 * 7 * expert + 2 * vocab));
  EXPECT_DOUBLE_EQ(work.lookup_share, vocab / (dense + 2 * 7 * expert + 2 * vocab));
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

TEST(StepWork, AStepReadsTheExpertsThatItsTokensTake) {
  ModelWork work = kWork;
  work.lookup_share = 0.1;
  work.experts_share = 0.5;
  work.chosen_share = 0.25;
  EXPECT_DOUBLE_EQ(DecodeBytes(work, 1, 10, 3), 900 - 500 * 0.75 + 12 * 4) << "a quarter of the experts";
  EXPECT_DOUBLE_EQ(DecodeBytes(work, 2, 10, 3), 900 - 500 * 0.75 * 0.75 + 2 * 12 * 4);
}

}  // namespace
}  // namespace somnus
