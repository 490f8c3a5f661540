#pragma once
// Measures a model's matrix products on a GPU (TuneLinear, kernels/ops.h), so that each is computed in the
// fastest way that the device has for the product's size.
//
// Borrows the context and the head. Used by the runner thread alone.

#include <chrono>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "worker/model/decoder_model.h"
#include "worker/runner/logits_head.h"

namespace somnus {

class LinearTuner {
 public:
  // `max_time`: of all measurements together. A product that was not measured in time is computed in the
  // library's usual way.
  LinearTuner(const ModelContext* context, LogitsHead* head, absl::Duration max_time)
      : c_(*context), head_(*head), max_time_(max_time) {}

  // Measures the layers at `most_tokens` and at the sizes of decode batches, and the head at the batch sizes.
  // Overwrites activations; no step may be under way. Measures once, because a number of rows must be
  // computed in one way as long as the worker lives; later calls do nothing, and neither does a call on a
  // CPU.
  absl::Status Run(int32_t most_tokens, const std::vector<int32_t>& sizes);

 private:
  using Clock = std::chrono::steady_clock;

  // Returns how many choices were made.
  int64_t TuneLayers(int64_t num_tokens, Clock::time_point deadline) const;

  const ModelContext& c_;
  LogitsHead& head_;
  const absl::Duration max_time_;
  bool done_ = false;
};

}  // namespace somnus
