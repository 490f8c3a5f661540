#pragma once
// The flat arrays that ops read, made from the batch state once per step. The arrays live in the step's
// inputs, a MirroredBlock at fixed addresses, so that a CUDA graph finds every step's numbers at the same
// addresses.
//
// Block tables and sampled tokens stay on the device, by slot: a step brings the entries that are new, and
// names a token that the host does not know yet by the slot.

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "worker/model/carver.h"
#include "worker/model/decoder_model.h"
#include "worker/runner/batch_state.h"
#include "worker/runner/staging.h"

namespace somnus {

// A row of the step that needs logits.
struct LogitRow {
  int32_t row = 0;  // of the step's tokens
  int32_t slot = 0;
  int32_t position = 0;  // of the row's token; the logits are about position + 1
  // A sequence with a draft has several rows, in the order of positions. guess: the draft's token at position
  // + 1, or -1 behind the draft's end. The token sampled in the next row counts only if this row samples the
  // guess.
  bool has_draft = false;
  int32_t guess = -1;
};

// The rows of the step that a sequence that pools has computed.
struct PoolingPart {
  int32_t slot = 0;
  int32_t first_row = 0;  // of the step's tokens
  int32_t num_rows = 0;
  int32_t start = 0;  // the position of the first row's token
};

class StepArrays {
 public:
  StepArrays(const BatchLimits& limits, MirroredBlock* inputs);

  // Takes the arrays that stay on the device.
  void Carve(Carver* carver);
  void Bind(Device* device) { device_ = device; }
  // [max_adapters]: the place of each slot's adapter, as of every Build. Borrowed; needed where there may be
  // adapters.
  void UseAdapters(const std::vector<int32_t>* places) { adapter_places_ = places; }

  // Fills the current host buffer for state.scheduled(): sequences of a single token first, then, up to
  // `num_padded` sequences, padding (ops.h, AttentionBatch). 0: none.
  void Build(const BatchState& state, int64_t num_padded);
  // Fills the buffer for a sequence of the tokens, at most block_size. Keys and values go to the null block,
  // and the block table takes the place of slot 0's, which must be free. Every row gives logits.
  void BuildOnNullBlock(absl::Span<const int32_t> token_ids);
  // As Queue, for the inputs of BuildOnNullBlock.
  void QueueNullBlock();
  // Queues the updates of the device's block tables; to be called after the inputs' Upload.
  absl::Status Queue(const BatchState& state, SideStage* side);
  // Queues the ops that a graph records with the model, which read the inputs and nothing else. Returns the
  // model's input, valid until the next Build.
  const StepInput& QueueInputs();
  // The same, once the ops were queued, by a graph or otherwise.
  const StepInput& Inputs();

  // Rows that sample a token, rows of forks last, and rows that decide a prompt token whose logprob was asked
  // for; of the last Build.
  const std::vector<LogitRow>& sample_rows() const { return sample_rows_; }
  const std::vector<LogitRow>& prompt_rows() const { return prompt_rows_; }
  const std::vector<PoolingPart>& pooling_parts() const { return pooling_parts_; }
  // [S + kMaxStepDraftTokens], on the device: the rows and slots of sample_rows(); slot -1 where a draft is.
  const int32_t* sample_row_indices() const { return sample_row_indices_.device(); }
  const int32_t* sample_slots() const { return sample_slots_.device(); }
  // [max_num_seqs, max_blocks_per_seq], on the device: each slot's block table.
  const int32_t* slot_tables() const { return slot_tables_; }
  // [max_num_seqs], on the device: each slot's last sampled token.
  int32_t* last_tokens() const { return last_tokens_; }

 private:
  void AddSequence(const Slot& slot, const ScheduledSlot& scheduled);
  void AddRows(const Slot& slot, const ScheduledSlot& scheduled);
  void AddForkedRows(const BatchState& state);
  void AddPadding(int64_t num_padded);

  const BatchLimits limits_;
  const int64_t max_blocks_per_seq_;
  const int64_t max_edits_;
  Device* device_ = nullptr;
  const std::vector<int32_t>* adapter_places_ = nullptr;

  MirroredBlock::Array<int32_t> query_start_;                           // [S + 1]
  MirroredBlock::Array<int32_t> context_len_;                           // [S]
  MirroredBlock::Array<int32_t> seq_slots_;                             // [S]
  MirroredBlock::Array<int32_t> sample_row_indices_, sample_slots_;     // [S + kMaxStepDraftTokens]
  MirroredBlock::Array<BlockTableEdit> edits_;                          // [max_edits]
  MirroredBlock::Array<int32_t> token_ids_, positions_, slot_mapping_;  // [T]
  MirroredBlock::Array<int32_t> adapter_slots_;                         // [T], where there may be adapters
  bool uses_adapters_ = false;  // in the last Build: a row has an adapter, or a graph's row may have one

  int32_t* slot_tables_ = nullptr;   // [max_num_seqs, max_blocks_per_seq], on the device
  int32_t* block_tables_ = nullptr;  // [S, max_blocks_per_seq], on the device: the step's sequences in order
  int32_t* last_tokens_ = nullptr;

  StepInput input_;
  std::vector<LogitRow> sample_rows_, prompt_rows_;
  std::vector<PoolingPart> pooling_parts_;
};

}  // namespace somnus
