// BatchState's part for what the coordinator decides in the place of the sampler: the tokens that a sequence
// goes on with, drafts among them, and which sequence a slot goes on with.

#include <algorithm>
#include <vector>

#include "base/status_macros.h"
#include "worker/runner/batch_state.h"
#include "worker/runner/step_checks.h"

namespace somnus {

absl::Status BatchState::Branch(const v1::StepRequest& request) {
  block_edits_.clear();
  added_slots_.clear();
  std::vector<Slot> sources;  // as they are before any slot is written
  for (const v1::SequenceFork& branch : request.branches()) {
    RETURN_IF_ERROR(CheckSlot(branch.source_slot()));
    if (!slots_[branch.source_slot()].in_use)
      return InvalidStep("slot ", branch.slot(), " branches from slot ", branch.source_slot(),
                         ", which is not in use");
    sources.push_back(slots_[branch.source_slot()]);
  }
  for (int i = 0; i < request.branches_size(); ++i)
    RETURN_IF_ERROR(BranchSlot(request.branches(i), sources[i]));
  return absl::OkStatus();
}

absl::Status BatchState::BranchSlot(const v1::SequenceFork& branch, const Slot& source) {
  RETURN_IF_ERROR(CheckSlot(branch.slot()));
  if (std::find(added_slots_.begin(), added_slots_.end(), branch.slot()) != added_slots_.end())
    return InvalidStep("slot ", branch.slot(), " is branched twice");
  Slot& slot = slots_[branch.slot()];
  const int64_t generation = slot.generation + 1;
  slot = source;
  slot.tokens.reserve(limits_.max_model_len + 1);
  slot.generation = generation;
  slot.seed = branch.seed();
  slot.block_ids.clear();
  added_slots_.push_back(branch.slot());
  return AppendBlocks(branch.slot(), branch.block_ids());
}

absl::Status BatchState::CheckBranchesHaveInput(const v1::StepRequest& request) const {
  std::vector<bool> has_input(request.branches_size() == 0 ? 0 : limits_.max_num_seqs, false);
  if (has_input.empty()) return absl::OkStatus();
  for (const v1::ScheduledSequence& sequence : request.sequences())
    has_input[sequence.slot()] = sequence.input_token_ids_size() > 0;
  for (const v1::SequenceFork& branch : request.branches()) {
    if (!has_input[branch.slot()])
      return InvalidStep("slot ", branch.slot(), " is branched but has no input token");
  }
  return absl::OkStatus();
}

absl::Status BatchState::ReplaceTokens(const v1::ScheduledSequence& sequence) {
  Slot& slot = slots_[sequence.slot()];
  const int32_t count = sequence.input_token_ids_size(), start = sequence.start_position();
  if (count != sequence.num_tokens()) {
    return InvalidStep("slot ", sequence.slot(), ": ", count, " input tokens, ", sequence.num_tokens(),
                       " are scheduled");
  }
  if (start < slot.num_prompt_tokens || start > slot.num_computed) {
    return InvalidStep("slot ", sequence.slot(), ": input tokens at position ", start, ", allowed are ",
                       slot.num_prompt_tokens, " to ", slot.num_computed);
  }
  // Tokens become known in order, so the last one tells of all.
  if (slot.tokens.back() == kUnknownToken)
    return InvalidStep("slot ", sequence.slot(), ": input tokens while others are pending");
  RETURN_IF_ERROR(CheckDraft(sequence));
  slot.error = CheckTokenIds(sequence.input_token_ids(), limits_.vocab_size);
  if (!slot.error.ok()) return absl::OkStatus();
  slot.tokens.resize(start);
  slot.tokens.insert(slot.tokens.end(), sequence.input_token_ids().begin(), sequence.input_token_ids().end());
  slot.num_computed = start;
  const auto num_blocks = static_cast<size_t>((start + limits_.block_size - 1) / limits_.block_size);
  if (slot.num_drafts > 0 && slot.block_ids.size() > num_blocks) slot.block_ids.resize(num_blocks);
  slot.num_drafts = sequence.num_draft_tokens();
  const bool is_added =
      std::find(added_slots_.begin(), added_slots_.end(), sequence.slot()) != added_slots_.end();
  if (slot.sampling->has_penalties() && !is_added) added_slots_.push_back(sequence.slot());
  return absl::OkStatus();
}

absl::Status BatchState::CheckDraft(const v1::ScheduledSequence& sequence) {
  const int32_t count = sequence.num_draft_tokens();
  if (count < 0 || count >= sequence.num_tokens() || count > kMaxStepDraftTokens - num_draft_tokens_)
    return InvalidStep("slot ", sequence.slot(), ": ", count, " draft tokens of ", sequence.num_tokens());
  num_draft_tokens_ += count;
  return absl::OkStatus();
}

}  // namespace somnus
