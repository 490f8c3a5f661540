// The command line of decode_bench.

#include "tools/bench/decode/decode_flags.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

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

TEST(DecodeFlags, SaysWhatIsMissing) {
  EXPECT_EQ(ParseDecodeFlags({"--threads=2"}).status().message(), "--model: no model was given; see --help");
  EXPECT_EQ(Parse({"--peer=llama-batched-bench"}).status().message(), "--peer: needs --peer-model");
  EXPECT_EQ(Parse({"--dtype=int8"}).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace somnus
