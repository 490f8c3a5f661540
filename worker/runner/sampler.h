#pragma once
// Chooses tokens from logits, in vLLM's order: log-probabilities are those of the raw logits; then allowed
// tokens, bad words, min_tokens, logit bias, penalties; then temperature, top-k, top-p, min-p and the draw
// (kernels/ops.h). Deterministic: every rank that holds the same logits and the same batch state chooses the
// same tokens.

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "kernels/device.h"
#include "kernels/ops.h"
#include "proto/worker.pb.h"
#include "worker/model/carver.h"
#include "worker/runner/batch_state.h"
#include "worker/runner/step_arrays.h"

namespace somnus {

// True when the slot's next token is simply the likeliest one and nobody asks for its probability.
bool IsPlainGreedy(const Slot& slot);

// Changes one row of logits ([vocab]) by everything that comes before temperature.
void AdjustLogits(const Slot& slot, absl::Span<float> logits);

class Sampler {
 public:
  void Carve(Carver* carver, int64_t vocab_size, int64_t max_rows);
  void Bind(Device* device) { device_ = device; }

  // tokens[i] = the sample of row i. logits: f32 [rows.size(), vocab], destroyed. Where `reply` is given, the
  // sampled tokens and the log-probabilities that were asked for are added to it.
  void SampleRows(const TensorView& logits, absl::Span<const LogitRow> rows, const BatchState& state,
                  int32_t* tokens, v1::StepReply* reply);

  // Log-probabilities of the prompt tokens that follow `rows`; adds to reply.
  void PromptLogprobs(const TensorView& logits, absl::Span<const LogitRow> rows, const BatchState& state,
                      v1::StepReply* reply);

 private:
  // The rows whose slots want logprobs, copied to raw_ before the logits are changed.
  void KeepRawLogits(const TensorView& logits, absl::Span<const LogitRow> rows, const BatchState& state);
  void FillLogprobs(int64_t i, int32_t num_logprobs, int64_t stride, v1::StepLogprobs* out) const;

  Device* device_ = nullptr;
  TensorView raw_;  // f32 [R, vocab]
  int64_t num_raw_ = 0;
  int64_t max_alternatives_ = 0;      // over the raw rows
  int32_t* raw_rows_ = nullptr;       // [R]: row of logits that raw row i copies
  int32_t* ids_ = nullptr;            // [R]
  float* logprobs_ = nullptr;         // [R]
  int32_t* ranks_ = nullptr;          // [R]
  ScoredToken* top_ = nullptr;        // [R, kMaxLogprobs]
  SampleRow* sample_rows_ = nullptr;  // [R]
};

}  // namespace somnus
