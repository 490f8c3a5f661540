#include "worker/runner/step_arrays.h"

#include <algorithm>

#include "base/null_block.h"

namespace somnus {
namespace {

// Entries of block tables that travel with the other inputs: a decode step adds an entry per sequence now and
// then, a chunk of prompt an entry per block. More entries, as for a long cached prefix, go through
// SideStage.
int64_t EditsWithInputs(const BatchLimits& limits) {
  return limits.max_num_seqs + limits.max_num_batched_tokens / std::max(1, limits.block_size) + 1;
}

}  // namespace

StepArrays::StepArrays(const BatchLimits& limits, MirroredBlock* inputs)
    : limits_(limits), max_blocks_per_seq_(limits.max_blocks_per_seq()), max_edits_(EditsWithInputs(limits)) {
  const int64_t num_seqs = limits.max_num_seqs, num_tokens = limits.max_num_batched_tokens;
  const int64_t num_samples = num_seqs + kMaxStepDraftTokens;
  query_start_ = inputs->Take<int32_t>(num_seqs + 1);
  context_len_ = inputs->Take<int32_t>(num_seqs);
  seq_slots_ = inputs->Take<int32_t>(num_seqs);
  sample_row_indices_ = inputs->Take<int32_t>(num_samples);
  sample_slots_ = inputs->Take<int32_t>(num_samples);
  edits_ = inputs->Take<BlockTableEdit>(max_edits_);
  token_ids_ = inputs->Take<int32_t>(num_tokens);
  positions_ = inputs->Take<int32_t>(num_tokens);
  slot_mapping_ = inputs->Take<int32_t>(num_tokens);
  if (limits.max_adapters > 0) adapter_slots_ = inputs->Take<int32_t>(num_tokens);
  sample_rows_.reserve(num_samples);
}

void StepArrays::Carve(Carver* carver) {
  slot_tables_ = carver->Take<int32_t>(limits_.max_num_seqs * max_blocks_per_seq_);
  block_tables_ = carver->Take<int32_t>(limits_.max_num_seqs * max_blocks_per_seq_);
  last_tokens_ = carver->Take<int32_t>(limits_.max_num_seqs);
}

void StepArrays::Build(const BatchState& state, int64_t num_padded) {
  sample_rows_.clear();
  prompt_rows_.clear();
  pooling_parts_.clear();
  input_ = StepInput();
  uses_adapters_ = limits_.max_adapters > 0 && num_padded > 0;
  query_start_.host()[0] = 0;
  for (const bool decodes : {true, false}) {
    for (const ScheduledSlot& scheduled : state.scheduled()) {
      if ((scheduled.num_tokens == 1) == decodes) AddSequence(state.slot(scheduled.slot), scheduled);
    }
    if (decodes) input_.batch.num_decodes = input_.batch.num_seqs;
  }
  AddForkedRows(state);
  AddPadding(num_padded);
  for (size_t i = 0; i < sample_rows_.size(); ++i) {
    sample_row_indices_.host()[i] = sample_rows_[i].row;
    sample_slots_.host()[i] = sample_rows_[i].has_draft ? -1 : sample_rows_[i].slot;
  }
  const std::vector<BlockTableEdit>& edits = state.block_edits();
  std::copy_n(edits.begin(), std::min<int64_t>(max_edits_, edits.size()), edits_.host());
}

void StepArrays::AddSequence(const Slot& slot, const ScheduledSlot& scheduled) {
  AttentionBatch& batch = input_.batch;
  const int32_t end = scheduled.start + scheduled.num_tokens;
  context_len_.host()[batch.num_seqs] = end;
  seq_slots_.host()[batch.num_seqs] = scheduled.slot;
  AddRows(slot, scheduled);
  batch.num_tokens += scheduled.num_tokens;
  ++batch.num_seqs;
  query_start_.host()[batch.num_seqs] = static_cast<int32_t>(batch.num_tokens);
  batch.max_query_len = std::max<int64_t>(batch.max_query_len, scheduled.num_tokens);
  batch.max_context_len = std::max<int64_t>(batch.max_context_len, end);
}

void StepArrays::AddRows(const Slot& slot, const ScheduledSlot& scheduled) {
  const bool wants_prompt_logprobs = slot.sampling->num_prompt_logprobs >= 0;
  const int32_t first_row = static_cast<int32_t>(input_.batch.num_tokens), block_size = limits_.block_size;
  const int32_t adapter_place = slot.adapter_slot > 0 ? (*adapter_places_)[slot.adapter_slot - 1] : -1;
  for (int32_t i = 0; i < scheduled.num_tokens; ++i) {
    const int32_t row = first_row + i, position = scheduled.start + i;
    const int32_t token = slot.tokens[position];
    token_ids_.host()[row] = token >= 0 ? token : -1 - scheduled.slot;
    positions_.host()[row] = position;
    if (limits_.max_adapters > 0) adapter_slots_.host()[row] = adapter_place;
    slot_mapping_.host()[row] = slot.block_ids[position / block_size] * block_size + position % block_size;
    if (wants_prompt_logprobs && position + 1 < slot.num_prompt_tokens) {
      prompt_rows_.push_back({row, scheduled.slot, position});
    }
  }
  uses_adapters_ |= slot.adapter_slot > 0;
  if (slot.pools())
    pooling_parts_.push_back({scheduled.slot, first_row, scheduled.num_tokens, scheduled.start});
  if (!scheduled.samples) return;
  const int32_t end = scheduled.start + scheduled.num_tokens;
  for (int32_t position = end - 1 - scheduled.num_drafts; position < end; ++position) {
    const int32_t guess = position + 1 < end ? slot.tokens[position + 1] : -1;
    sample_rows_.push_back(
        {first_row + position - scheduled.start, scheduled.slot, position, scheduled.num_drafts > 0, guess});
  }
}

void StepArrays::AddForkedRows(const BatchState& state) {
  const size_t num_scheduled = sample_rows_.size();
  for (const ForkedSlot& fork : state.forked()) {
    const auto source = std::find_if(sample_rows_.begin(), sample_rows_.begin() + num_scheduled,
                                     [&](const LogitRow& row) { return row.slot == fork.source; });
    sample_rows_.push_back({source->row, fork.slot, source->position});
  }
}

void StepArrays::AddPadding(int64_t num_padded) {
  AttentionBatch& batch = input_.batch;
  for (; batch.num_seqs < num_padded; ++batch.num_seqs, ++batch.num_tokens) {
    context_len_.host()[batch.num_seqs] = 0;
    seq_slots_.host()[batch.num_seqs] = 0;
    query_start_.host()[batch.num_seqs + 1] = static_cast<int32_t>(batch.num_tokens + 1);
    token_ids_.host()[batch.num_tokens] = 0;
    positions_.host()[batch.num_tokens] = 0;
    slot_mapping_.host()[batch.num_tokens] = 0;
    if (limits_.max_adapters > 0) adapter_slots_.host()[batch.num_tokens] = -1;
  }
  if (num_padded == 0) return;
  batch.num_decodes = batch.num_seqs;
  batch.max_context_len = limits_.max_model_len;  // of every replay
}

void StepArrays::BuildOnNullBlock(absl::Span<const int32_t> token_ids) {
  sample_rows_.clear();
  prompt_rows_.clear();
  pooling_parts_.clear();
  uses_adapters_ = false;
  input_ = StepInput();
  AttentionBatch& batch = input_.batch;
  const int32_t count = static_cast<int32_t>(token_ids.size());
  batch.num_seqs = 1;
  batch.num_decodes = count == 1 ? 1 : 0;
  batch.num_tokens = batch.max_query_len = batch.max_context_len = count;
  query_start_.host()[0] = 0;
  query_start_.host()[1] = context_len_.host()[0] = count;
  seq_slots_.host()[0] = 0;
  edits_.host()[0] = {0, 0, kNullBlock};
  for (int32_t i = 0; i < count; ++i) {
    token_ids_.host()[i] = token_ids[i];
    positions_.host()[i] = i;
    slot_mapping_.host()[i] = kNullBlock * limits_.block_size + i;
    sample_rows_.push_back({i, 0, i});
  }
}

void StepArrays::QueueNullBlock() {
  EditBlockTables(*device_, edits_.device(), 1, slot_tables_, max_blocks_per_seq_);
}

absl::Status StepArrays::Queue(const BatchState& state, SideStage* side) {
  const std::vector<BlockTableEdit>& edits = state.block_edits();
  const int64_t count = static_cast<int64_t>(edits.size()), with_inputs = std::min(max_edits_, count);
  if (with_inputs > 0)
    EditBlockTables(*device_, edits_.device(), with_inputs, slot_tables_, max_blocks_per_seq_);
  return side->ForEachPiece(edits.data() + with_inputs, count - with_inputs,
                            [&](int64_t first, const BlockTableEdit* piece, int64_t n) {
                              EditBlockTables(*device_, piece, n, slot_tables_, max_blocks_per_seq_);
                            });
}

const StepInput& StepArrays::QueueInputs() {
  GatherBlockTables(*device_, slot_tables_, seq_slots_.device(), context_len_.device(), input_.batch.num_seqs,
                    max_blocks_per_seq_, limits_.block_size, block_tables_);
  ResolveTokens(*device_, token_ids_.device(), input_.batch.num_tokens, last_tokens_);
  return Inputs();
}

const StepInput& StepArrays::Inputs() {
  AttentionBatch& batch = input_.batch;
  input_.token_ids = token_ids_.device();
  batch.query_start = query_start_.device();
  batch.context_len = context_len_.device();
  batch.block_tables = block_tables_;
  batch.max_blocks_per_seq = max_blocks_per_seq_;
  batch.positions = positions_.device();
  batch.slot_mapping = slot_mapping_.device();
  if (uses_adapters_) input_.adapter_slots = adapter_slots_.device();
  return input_;
}

}  // namespace somnus
