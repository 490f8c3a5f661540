#pragma once
// Chooses tokens from logits, in vLLM's order: log-probabilities are those of the raw logits; then
// logit_edits.h; then temperature, top-k, top-p, min-p and the draw (kernels/ops.h). Deterministic: every
// rank that holds the same logits and the same batch state chooses the same tokens.
//
// A step goes Build (host), Upload of the inputs, QueueCounts, QueueSample per piece of rows, QueueFinish,
// Download of the results; TakeResults says how to read them once they are there.

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "kernels/device.h"
#include "kernels/ops.h"
#include "proto/worker.pb.h"
#include "worker/model/carver.h"
#include "worker/runner/batch_state.h"
#include "worker/runner/row_masks.h"
#include "worker/runner/staging.h"
#include "worker/runner/step_arrays.h"

namespace somnus {

// Adds an error that ends the sequence in `slot`. The first error of a slot counts.
void AddSlotError(int32_t slot, const absl::Status& error, v1::StepReply* reply);

// What a step sampled, in one host buffer of the results block, and which logprobs each row asked for.
struct SampledRows {
  std::vector<LogitRow> rows;
  std::vector<int32_t> num_logprobs;  // per row; -1: none
  int64_t top_stride = 0;
  const int32_t* tokens = nullptr;  // [rows]
  const float* logprobs = nullptr;  // [those with num_logprobs >= 0, in order], as the two below
  const int32_t* ranks = nullptr;
  const ScoredToken* top = nullptr;  // top_stride each

  // Adds a token or a slot error for each row; of a sequence with a draft the tokens that count.
  void FillReply(v1::StepReply* reply) const;
};

class Sampler {
 public:
  // The arrays' memory: `inputs` goes to the device, `results` comes back. Both outlive the sampler.
  Sampler(const BatchLimits& limits, int64_t max_rows, MirroredBlock* inputs, MirroredBlock* results);

  // Takes the device's own arrays. Counts are cleared slot by slot, when a sequence needs them.
  void Carve(Carver* carver, const Device& device);
  // Also after a wake-up; no slot is in use.
  absl::Status Bind(Device* device, void* prompt_results);
  int64_t prompt_results_bytes() const { return prompt_results_.bytes(); }

  // Records the sampling parameters of `rows`. Log-probabilities are computed only with `logprobs`, on the
  // rank that reports them. `awaits_masks`: SetMasks follows on rank 0, and no rank samples greedily before.
  void Build(absl::Span<const LogitRow> rows, const BatchState& state, bool logprobs, bool awaits_masks);
  // The masks of the rows of the last Build, before QueueSample. Errors as RowMasks::Set.
  absl::Status SetMasks(const v1::StepMasks& masks) {
    return row_masks_.Set(masks, rows_, limits_.vocab_size);
  }
  // True when every row's token is simply the likeliest one: then the caller fills tokens() itself.
  bool plain_greedy() const { return plain_greedy_; }
  // [rows], on the device.
  int32_t* tokens() const { return tokens_.device(); }

  // Counts the tokens of sequences with penalties that came with this step, without those of drafts.
  absl::Status QueueCounts(const BatchState& state, SideStage* side);
  // tokens()[first, first + logits.rows) = samples. logits: f32 [R, vocab], destroyed; R <= max_rows.
  absl::Status QueueSample(const TensorView& logits, int64_t first, const BatchState& state, SideStage* side);
  // Stores the sampled tokens for the next step. slots: [rows], on the device.
  void QueueFinish(const int32_t* slots, int32_t* last_tokens);

  int64_t results_bytes() const;
  SampledRows TakeResults();

  // Log-probabilities of the prompt tokens that follow `rows` (R <= max_rows); adds to reply, and slot errors
  // where logits are not finite. Waits for the device.
  absl::Status PromptLogprobs(const TensorView& logits, absl::Span<const LogitRow> rows,
                              const BatchState& state, SideStage* side, v1::StepReply* reply);

 private:
  absl::Status AllocateHostCounts();
  absl::Status QueueEdits(const TensorView& logits, int64_t first, const BatchState& state, SideStage* side);
  absl::Status QueuePenalties(const TensorView& logits, int64_t first, const BatchState& state,
                              SideStage* side);
  absl::Status QueueMasks(const TensorView& logits, int64_t first, const BatchState& state, SideStage* side);

  const BatchLimits limits_;
  const int64_t max_rows_;
  Device* device_ = nullptr;

  // Inputs, [S + kMaxStepDraftTokens], as the results.
  MirroredBlock::Array<SampleRow> sample_rows_;
  MirroredBlock::Array<PenaltyRow> penalties_;  // of drafts the first row alone
  MirroredBlock::Array<int32_t> raw_rows_;      // row within its piece of logits that raw row i copies
  MirroredBlock::Array<int32_t> raw_ids_;       // the chosen token of raw row i, by ResolveTokens
  MirroredBlock::Array<int32_t> count_slots_;   // the row's slot if it has penalties and no draft, else -1

  MirroredBlock::Array<int32_t> tokens_;  // results
  MirroredBlock::Array<float> logprobs_;
  MirroredBlock::Array<int32_t> ranks_;
  MirroredBlock::Array<ScoredToken> top_;  // [, kMaxStepLogprobs]

  MirroredBlock prompt_results_;  // as logprobs, ranks and top, [max_rows]
  MirroredBlock::Array<float> prompt_logprobs_;
  MirroredBlock::Array<int32_t> prompt_ranks_;
  MirroredBlock::Array<ScoredToken> prompt_top_;

  TensorView raw_;      // f32 [max_rows, vocab], on the device
  TokenCounts counts_;  // of every slot, on the device
  // Of counts_, where memory is shared: pages that no sequence with penalties has touched cost nothing.
  std::unique_ptr<void, decltype(&std::free)> host_counts_{nullptr, &std::free};

  // The step's rows, host side.
  std::vector<LogitRow> rows_;
  std::vector<int32_t> num_logprobs_;
  std::vector<LogitEdit> edits_;
  RowMasks row_masks_;
  std::vector<uint32_t> masks_;
  std::vector<int32_t> masked_rows_, prompt_ids_;
  // Of each row: its place among those of its slot, if that has penalties, from 0.
  std::vector<int32_t> places_;
  int64_t num_raw_ = 0, num_raw_queued_ = 0, top_stride_ = 0;
  bool plain_greedy_ = true, any_penalties_ = false;
};

}  // namespace somnus
