// The command line of decode_bench.

#include "tools/bench/decode/decode_flags.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "coordinator/flags/kv_cache_dtype.h"

namespace somnus {
namespace {

absl::StatusOr<DecodeFlags> Parse(std::vector<std::string> more) {
  more.insert(more.begin(), {"--model", "m-Q4_0.gguf"});
  return ParseDecodeFlags(more);
}

// Otherwise the peer's 4 bits would stand beside 16 of ours.
TEST(DecodeFlags, AQuantizedFileIsComputedAsStored) {
  const auto flags = Parse({"--peer", "llama-batched-bench", "--peer_model", "m-Q4_0.gguf"});
  ASSERT_TRUE(flags.ok()) << flags.status();
  EXPECT_FALSE(flags->dequantize);
  EXPECT_EQ(flags->peer_model, flags->model);
  EXPECT_FALSE(flags->quantize.has_value());
  EXPECT_TRUE(Parse({"--dequantize"})->dequantize);
  EXPECT_FALSE(Parse({"--no-dequantize"})->dequantize);
}

TEST(DecodeFlags, TheKvCacheHasTheTypesOfAServers) {
  EXPECT_FALSE(Parse({})->kv_cache_dtype.has_value());
  for (const auto& [name, type] :
       std::vector<std::pair<std::string, std::optional<DataType>>>{{"auto", std::nullopt},
                                                                    {"bfloat16", DataType::kBF16},
                                                                    {"float16", DataType::kF16},
                                                                    {"float32", DataType::kF32},
                                                                    {"fp8", DataType::kF8E4M3},
                                                                    {"fp8_e4m3", DataType::kF8E4M3},
                                                                    {"int8", DataType::kI8},
                                                                    {"int8_per_token_head", DataType::kI8}}) {
    const auto flags = Parse({"--kv-cache-dtype", name});
    ASSERT_TRUE(flags.ok()) << flags.status();
    EXPECT_EQ(flags->kv_cache_dtype, type) << name;
    EXPECT_TRUE(ParseKvCacheDType(name).ok()) << name;
  }
  for (const char* name : {"fp8_e5m2", "int4", "q8_0"}) {
    EXPECT_EQ(Parse({"--kv-cache-dtype", name}).status().code(), absl::StatusCode::kInvalidArgument) << name;
    EXPECT_FALSE(ParseKvCacheDType(name).ok()) << name;
  }
}

TEST(DecodeFlags, SaysWhatIsMissing) {
  EXPECT_EQ(ParseDecodeFlags({"--threads=2"}).status().message(), "--model: no model was given; see --help");
  EXPECT_EQ(Parse({"--peer=llama-batched-bench"}).status().message(), "--peer: needs --peer-model");
  EXPECT_EQ(Parse({"--dtype=int8"}).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace somnus
