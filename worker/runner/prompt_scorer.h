#pragma once
// Log-probabilities of prompt tokens, on the rank that makes replies.
//
// Memory on the device is carved from the runner's workspace. Used by the runner thread alone.

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "kernels/device.h"
#include "kernels/ops.h"
#include "proto/worker.pb.h"
#include "worker/model/carver.h"
#include "worker/runner/batch_state.h"
#include "worker/runner/staging.h"
#include "worker/runner/step_arrays.h"

namespace somnus {

class PromptScorer {
 public:
  // max_rows: of a call.
  explicit PromptScorer(int64_t max_rows);

  void Carve(Carver* carver) { results_.Carve(carver); }
  absl::Status Bind(Device* device);

  // Adds to the reply the log-probabilities of the prompt tokens that follow `rows`, and slot errors where
  // logits are not finite. logits: f32 [rows, vocab]. Waits for the device.
  absl::Status Score(const TensorView& logits, absl::Span<const LogitRow> rows, const BatchState& state,
                     SideStage* side, v1::StepReply* reply);

 private:
  Device* device_ = nullptr;
  MirroredBlock results_;  // [max_rows] each, and kMaxStepLogprobs for each row of top_
  MirroredBlock::Array<float> logprobs_;
  MirroredBlock::Array<int32_t> ranks_;
  MirroredBlock::Array<ScoredToken> top_;
  std::vector<int32_t> ids_;
};

}  // namespace somnus
