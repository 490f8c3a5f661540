#pragma once
// Chooses tokens from logits, in vLLM's order: log-probabilities of the raw logits; then the edits of
// logit_edits.h; then penalties; then temperature, top-k, top-p, min-p and the draw (kernels/ops.h).
// Deterministic: every rank that holds the same logits and the same batch state chooses the same tokens.
//
// A step goes Build (host), Upload of the inputs, QueueCounts, QueueSample per piece of rows, QueueFinish,
// Download of the results; TakeResults says how to read the results.

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "kernels/device.h"
#include "kernels/ops.h"
#include "worker/model/carver.h"
#include "worker/runner/batch_state.h"
#include "worker/runner/row_masks.h"
#include "worker/runner/sampled_rows.h"
#include "worker/runner/staging.h"
#include "worker/runner/step_arrays.h"
#include "worker/runner/token_penalties.h"

namespace somnus {

class Sampler {
 public:
  // The arrays' memory: `inputs` goes to the device, `results` comes back. Both outlive the sampler.
  Sampler(const BatchLimits& limits, int64_t max_rows, MirroredBlock* inputs, MirroredBlock* results);

  // Takes the device's own arrays.
  void Carve(Carver* carver, const Device& device);
  // Also after a wake-up; no slot is in use.
  absl::Status Bind(Device* device);

  // Records the sampling parameters of `rows`. Log-probabilities are computed only with `logprobs`, on the
  // rank that makes replies. `awaits_masks`: SetMasks follows on rank 0, and no rank samples greedily before.
  void Build(absl::Span<const LogitRow> rows, const BatchState& state, bool logprobs, bool awaits_masks);
  // The masks of the rows of the last Build, before QueueSample. Errors as in RowMasks::Set.
  absl::Status SetMasks(const v1::StepMasks& masks) {
    return row_masks_.Set(masks, rows_, limits_.vocab_size);
  }
  // True when every row's token is simply the likeliest token: then the caller fills tokens().
  bool plain_greedy() const { return plain_greedy_; }
  // [rows], on the device.
  int32_t* tokens() const { return tokens_.device(); }

  // As TokenPenalties::QueueCounts.
  absl::Status QueueCounts(const BatchState& state, SideStage* side) {
    return penalties_.QueueCounts(state, side);
  }
  // tokens()[first, first + logits.rows) = samples. logits: f32 [R, vocab], destroyed; R <= max_rows.
  absl::Status QueueSample(const TensorView& logits, int64_t first, const BatchState& state, SideStage* side);
  // Stores the sampled tokens for the next step. slots: [rows], on the device.
  void QueueFinish(const int32_t* slots, int32_t* last_tokens);

  int64_t results_bytes() const;
  SampledRows TakeResults();

 private:
  absl::Status QueueEdits(const TensorView& logits, int64_t first, const BatchState& state, SideStage* side);
  absl::Status QueueMasks(const TensorView& logits, int64_t first, const BatchState& state, SideStage* side);

  const BatchLimits limits_;
  const int64_t max_rows_;
  Device* device_ = nullptr;
  TokenPenalties penalties_;

  // Inputs, [S + kMaxStepDraftTokens], as the results.
  MirroredBlock::Array<SampleRow> sample_rows_;
  MirroredBlock::Array<int32_t> raw_rows_;  // row within the piece of logits that raw row i copies
  MirroredBlock::Array<int32_t> raw_ids_;   // the chosen token of raw row i, by ResolveTokens

  MirroredBlock::Array<int32_t> tokens_;  // results
  MirroredBlock::Array<float> logprobs_;
  MirroredBlock::Array<int32_t> ranks_;
  MirroredBlock::Array<ScoredToken> top_;  // [, kMaxStepLogprobs]

  TensorView raw_;  // f32 [max_rows, vocab], on the device

  // The step's rows, host side.
  std::vector<LogitRow> rows_;
  std::vector<int32_t> num_logprobs_;
  std::vector<LogitEdit> edits_;
  RowMasks row_masks_;
  std::vector<uint32_t> masks_;
  std::vector<int32_t> masked_rows_;
  int64_t num_raw_ = 0, num_raw_queued_ = 0, top_stride_ = 0;
  bool plain_greedy_ = true;
};

}  // namespace somnus
