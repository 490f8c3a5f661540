// The types that decode_bench's loop computes with: the bench divides by the bytes of these types.

#include "tools/bench/decode/decode_loop.h"

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace somnus {
namespace {

std::unique_ptr<DecodeLoop> Load(DecodeLoopOptions options) {
  options.threads = 1;
  options.max_batch = 2;
  options.max_len = 64;
  options.max_step_tokens = 32;
  auto loop = DecodeLoop::Load(options);
  EXPECT_TRUE(loop.ok()) << loop.status();
  return std::move(loop).value_or(nullptr);
}

TEST(DecodeLoop, AStepReadsTheKvCacheInItsOwnType) {
  // A token has K and V of 16 values, of one head in each of two layers; of int8 each has a scale as well.
  for (const auto& [type, bytes] :
       std::vector<std::pair<std::optional<DataType>, double>>{{std::nullopt, 128},
                                                               {DataType::kBF16, 128},
                                                               {DataType::kF16, 128},
                                                               {DataType::kF32, 256},
                                                               {DataType::kF8E4M3, 64},
                                                               {DataType::kI8, 64 + 2 * 2 * sizeof(float)}}) {
    const auto loop = Load(DecodeLoopOptions{.model = "tests/data/tiny/llama-rope3", .kv_cache_dtype = type});
    ASSERT_NE(loop, nullptr);
    EXPECT_EQ(loop->work().kv_token_bytes, bytes);
    const double read = DecodeBytes(loop->work(), 2, 40, 3);
    const double weights = static_cast<double>(loop->weights_bytes()) * (1 - loop->work().lookup_share);
    EXPECT_DOUBLE_EQ(read, weights + 2 * 42 * bytes) << "all but the embedding, which is no head";
    const auto sample = loop->Run(2, 40, 3);
    ASSERT_TRUE(sample.ok()) << sample.status();
    EXPECT_EQ(sample->prompt_tokens, 80);
    EXPECT_EQ(sample->new_tokens, 6);
  }
}

TEST(DecodeLoop, ProductsAreOfBytesWhereWeightsAreComputedAsStored) {
  DecodeLoopOptions options{.model = "tests/data/packed/gptq4", .dequantize = false};
  const auto stored = Load(options);
  options.dequantize = true;
  const auto expanded = Load(options);
  ASSERT_TRUE(stored != nullptr && expanded != nullptr);
  EXPECT_TRUE(stored->multiplies_bytes());
  EXPECT_FALSE(expanded->multiplies_bytes());
}

}  // namespace
}  // namespace somnus
