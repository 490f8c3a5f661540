#pragma once
// The requests of one run, decided before the first is sent: the same seed gives the same bytes.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json_fwd.hpp"
#include "tools/bench/serving/options.h"

namespace somnus::bench {

struct BenchRequest {
  std::string path;
  std::string body;  // JSON
  double gap_s = 0;  // open loop: after the request before
};

// Makes requests. Create asks the server for its properties (the model's name, whether the server takes token
// ids, how many tokens a text has) and reads the dataset.
class Workload {
 public:
  // Fills in options->model if empty.
  static absl::StatusOr<Workload> Create(BenchOptions* options);
  // Makes `count` requests; `stream` tells runs of the same seed apart (warm-up, measured).
  absl::StatusOr<std::vector<BenchRequest>> Make(int32_t count, uint64_t stream) const;

 private:
  struct Sample {
    std::string prompt;
    std::vector<int32_t> prompt_ids;  // instead of `prompt`
    int32_t output_len = 0;
  };

  explicit Workload(BenchOptions options) : options_(std::move(options)) {}
  absl::Status LoadDataset();
  void AddSample(const nlohmann::json& item);  // unless the item has no prompt
  absl::Status ChoosePromptFormat();

  BenchOptions options_;
  bool use_ids_ = false;
  double words_per_token_ = 1;
  int32_t overhead_tokens_ = 0;  // of the chat template or a BOS token
  std::vector<Sample> samples_;
};

}  // namespace somnus::bench
