#include "worker/runner/step_arrays.h"

#include <algorithm>

namespace somnus {

void StepArrays::Carve(Carver* carver, const BatchLimits& limits) {
  max_blocks_per_seq_ = limits.max_blocks_per_seq();
  token_ids_ = carver->Take<int32_t>(limits.max_num_batched_tokens);
  positions_ = carver->Take<int32_t>(limits.max_num_batched_tokens);
  slot_mapping_ = carver->Take<int32_t>(limits.max_num_batched_tokens);
  query_start_ = carver->Take<int32_t>(limits.max_num_seqs + 1);
  context_len_ = carver->Take<int32_t>(limits.max_num_seqs);
  block_tables_ = carver->Take<int32_t>(limits.max_num_seqs * max_blocks_per_seq_);
  sample_rows_.reserve(limits.max_num_seqs);
}

StepInput StepArrays::Build(const BatchState& state) {
  sample_rows_.clear();
  prompt_rows_.clear();
  const int32_t block_size = state.limits().block_size;
  int32_t row = 0, sequence = 0;
  for (const ScheduledSlot& scheduled : state.scheduled()) {
    const Slot& slot = state.slot(scheduled.slot);
    const int32_t end = scheduled.start + scheduled.num_tokens;
    query_start_[sequence] = row;
    context_len_[sequence] = end;
    std::copy_n(slot.block_ids.begin(), (end + block_size - 1) / block_size,
                block_tables_ + sequence * max_blocks_per_seq_);
    AddRows(slot, scheduled, row, block_size);
    row += scheduled.num_tokens;
    ++sequence;
  }
  query_start_[sequence] = row;

  StepInput input;
  input.token_ids = token_ids_;
  input.batch.num_seqs = sequence;
  input.batch.num_tokens = row;
  input.batch.query_start = query_start_;
  input.batch.context_len = context_len_;
  input.batch.block_tables = block_tables_;
  input.batch.max_blocks_per_seq = max_blocks_per_seq_;
  input.batch.positions = positions_;
  input.batch.slot_mapping = slot_mapping_;
  return input;
}

void StepArrays::AddRows(const Slot& slot, const ScheduledSlot& scheduled, int32_t first_row,
                         int32_t block_size) {
  const bool wants_prompt_logprobs = slot.sampling.num_prompt_logprobs >= 0;
  for (int32_t i = 0; i < scheduled.num_tokens; ++i) {
    const int32_t row = first_row + i, position = scheduled.start + i;
    token_ids_[row] = slot.tokens[position];
    positions_[row] = position;
    slot_mapping_[row] = slot.block_ids[position / block_size] * block_size + position % block_size;
    if (wants_prompt_logprobs && position + 1 < slot.num_prompt_tokens) {
      prompt_rows_.push_back({row, scheduled.slot, position});
    }
  }
  if (scheduled.samples) {
    sample_rows_.push_back(
        {first_row + scheduled.num_tokens - 1, scheduled.slot, scheduled.start + scheduled.num_tokens - 1});
  }
}

}  // namespace somnus
