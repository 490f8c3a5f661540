#pragma once
// The options of serving_bench.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace somnus::bench {

// An inclusive range of lengths in tokens, uniformly drawn.
struct LengthRange {
  int32_t low = 0;
  int32_t high = 0;
};

// A request that meets every bound is good. Milliseconds; 0 is no bound.
struct Goodput {
  double ttft_ms = 0;
  double tpot_ms = 0;
  double e2e_ms = 0;
  bool any() const { return ttft_ms > 0 || tpot_ms > 0 || e2e_ms > 0; }
};

enum class PromptFormat { kAuto, kTokenIds, kText };

struct BenchOptions {
  std::string host = "127.0.0.1";
  int port = 8000;
  bool tls = false;
  std::string ca_cert;    // PEM file of the server's authorities; empty: the system's
  std::string base_path;  // before "/v1/..."
  std::string model;      // empty: the first of /v1/models
  std::string api_key;
  bool chat = false;
  int32_t num_requests = 100;
  int32_t warmup = 0;
  int32_t concurrency = 0;  // closed loop; 0: open loop at request_rate
  double request_rate = 0;  // per second, Poisson; 0 with concurrency 0: all at once
  LengthRange input{64, 64};
  LengthRange output{128, 128};
  int32_t vocab_low = 1000;  // random token ids are drawn from [vocab_low, vocab_high)
  int32_t vocab_high = 20000;
  PromptFormat prompt_format = PromptFormat::kAuto;
  std::string dataset;    // file; empty: random prompts
  bool in_order = false;  // the dataset's requests from the first on, each once; else drawn at random
  uint64_t seed = 0;
  bool ignore_eos = true;
  double temperature = 0;
  double timeout_s = 600;
  Goodput goodput;
  std::string json;  // file, or "-"
  bool probe = true;
};

// InvalidArgument names the flag.
absl::StatusOr<BenchOptions> ParseOptions(const std::vector<std::string>& args);
// For main: parses argv, and prints help, version or an error. An exit code when the program is to end now.
std::optional<int> ParseOptions(int argc, const char* const* argv, BenchOptions* options);

}  // namespace somnus::bench
