#pragma once
// The flags of decode_bench.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "checkpoint/checkpoint.h"
#include "kernels/tensor.h"

namespace somnus {

struct DecodeFlags {
  std::string model;
  LoadFormat load_format = LoadFormat::kAuto;
  int32_t threads = 2;
  DataType dtype = DataType::kBF16;
  // A server's default is the opposite. Here a quantized file is measured beside a peer, which computes with
  // the file's bits.
  bool dequantize = false;
  std::optional<DataType> quantize;
  std::optional<DataType> kv_cache_dtype;  // empty: dtype
  std::vector<int32_t> batches = {1, 4, 6, 8, 16, 32};
  int32_t prompt_tokens = 128;
  int32_t new_tokens = 64;
  std::vector<int32_t> prefill_tokens = {512};
  int32_t max_num_batched_tokens = 512;
  int32_t rounds = 3;
  std::string json;
  std::string peer;
  std::string peer_model;
};

// InvalidArgument names the flag.
absl::StatusOr<DecodeFlags> ParseDecodeFlags(const std::vector<std::string>& args);
// For main: parses argv, and prints help, version or an error. An exit code when the program is to end now.
std::optional<int> ParseDecodeFlags(int argc, const char* const* argv, DecodeFlags* flags);

}  // namespace somnus
