#pragma once
// The flat arrays that ops read, made from the batch state once per step, in workspace memory.

#include <cstdint>
#include <vector>

#include "worker/model/carver.h"
#include "worker/model/decoder_model.h"
#include "worker/runner/batch_state.h"

namespace somnus {

// A row of the step whose logits are needed.
struct LogitRow {
  int32_t row = 0;  // of the step's tokens
  int32_t slot = 0;
  int32_t position = 0;  // of that token; its logits are about position + 1
};

class StepArrays {
 public:
  // Reserves the arrays for the largest step.
  void Carve(Carver* carver, const BatchLimits& limits);

  // Fills them for state.scheduled().
  StepInput Build(const BatchState& state);

  // Rows that sample a token, and rows that decide a prompt token whose logprob was asked for; of the last
  // Build.
  const std::vector<LogitRow>& sample_rows() const { return sample_rows_; }
  const std::vector<LogitRow>& prompt_rows() const { return prompt_rows_; }

 private:
  void AddRows(const Slot& slot, const ScheduledSlot& scheduled, int32_t first_row, int32_t block_size);

  int64_t max_blocks_per_seq_ = 0;
  int32_t* token_ids_ = nullptr;     // [T]
  int32_t* positions_ = nullptr;     // [T]
  int32_t* slot_mapping_ = nullptr;  // [T]
  int32_t* query_start_ = nullptr;   // [S + 1]
  int32_t* context_len_ = nullptr;   // [S]
  int32_t* block_tables_ = nullptr;  // [S, max_blocks_per_seq]
  std::vector<LogitRow> sample_rows_, prompt_rows_;
};

}  // namespace somnus
