#pragma once
// How long a step takes on a modelled worker: a linear function of the step's work. The coefficients come
// from the paper's figures (docs/paper.md) or are fitted to the steps of a running engine.

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace somnus {

// The work of one step.
struct StepLoad {
  int64_t prefill_tokens = 0;    // of prompts
  int64_t decode_sequences = 0;  // that compute one token each
  int64_t kv_tokens = 0;         // that attention reads: all tokens so far of each sequence
  int64_t swapped_tokens = 0;    // with keys and values that are copied to host memory, or back

  bool empty() const { return prefill_tokens == 0 && decode_sequences == 0; }
};

// Seconds.
struct CostModel {
  double base = 0;  // of any step: weights are read, kernels are launched
  double per_prefill_token = 0;
  double per_decode_sequence = 0;
  double per_kv_token = 0;
  double per_swapped_token = 0;

  double StepSeconds(const StepLoad& load) const {
    return base + per_prefill_token * static_cast<double>(load.prefill_tokens) +
           per_decode_sequence * static_cast<double>(load.decode_sequences) +
           per_kv_token * static_cast<double>(load.kv_tokens) +
           per_swapped_token * static_cast<double>(load.swapped_tokens);
  }
};

// A machine with a model: speed and capacity.
struct ModelledWorker {
  std::string name;
  CostModel cost;
  int64_t kv_slots = 0;    // tokens of the KV cache
  int64_t swap_slots = 0;  // tokens in 4 GiB of host memory
};

// The known workers: "a100-opt-13b" is the paper's, "cpu-smollm2-135m" was fitted on 2 cores. NotFound names
// the known workers.
absl::StatusOr<ModelledWorker> FindWorker(const std::string& name);

// A measured step.
struct StepSample {
  StepLoad load;
  double seconds = 0;
};

struct CostFit {
  CostModel model;
  // Statistics of |modelled - measured| / measured over the samples.
  double median_error = 0;
  double p90_error = 0;
  double largest_error = 0;
};

// Least squares of the relative error, with no coefficient below 0. InvalidArgument where there are fewer
// than four samples, or a sample that took no time.
absl::StatusOr<CostFit> FitCostModel(const std::vector<StepSample>& samples);
// Reads one JSON object a line: prefill_tokens, decode_sequences, kv_tokens, seconds.
absl::StatusOr<std::vector<StepSample>> ReadStepSamples(const std::string& path);

}  // namespace somnus
