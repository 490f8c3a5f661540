#include "worker/runner/batch_state.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/null_block.h"
#include "base/status_macros.h"
#include "worker/runner/step_checks.h"

namespace somnus {

namespace {

absl::Status CheckPooling(const v1::NewSequence& sequence) {
  if (sequence.pooling() == v1::STEP_POOLING_NONE) return absl::OkStatus();
  if (!v1::StepPooling_IsValid(sequence.pooling()))
    return InvalidStep("slot ", sequence.slot(), ": pooling ", sequence.pooling());
  if (sequence.num_prompt_tokens() != sequence.token_ids_size())
    return InvalidStep("slot ", sequence.slot(), ": a sequence that pools has a prompt alone");
  if (sequence.pooling() != v1::STEP_POOLING_LAST && sequence.num_computed_tokens() != 0) {
    return InvalidStep("slot ", sequence.slot(), ": ", sequence.num_computed_tokens(),
                       " computed tokens, of which the pooled rows are missing");
  }
  return absl::OkStatus();
}

}  // namespace

BatchState::BatchState(const BatchLimits& limits)
    : limits_(limits), slots_(limits.max_num_seqs), slot_scheduled_(limits.max_num_seqs) {
  scheduled_.reserve(limits.max_num_seqs);
}

void BatchState::Clear() {
  for (Slot& slot : slots_) {
    const int64_t generation = slot.generation + 1;
    slot = Slot();
    slot.generation = generation;
  }
  scheduled_.clear();
  forked_.clear();
  block_edits_.clear();
  added_slots_.clear();
  refused_slots_.clear();
  num_scheduled_tokens_ = 0;
}

bool BatchState::empty() const {
  return std::none_of(slots_.begin(), slots_.end(), [](const Slot& slot) { return slot.in_use; });
}

absl::Status BatchState::CheckSlot(int32_t slot) const {
  if (slot < 0 || slot >= limits_.max_num_seqs)
    return InvalidStep("slot ", slot, " is not one of ", limits_.max_num_seqs);
  return absl::OkStatus();
}

size_t BatchState::FirstSeenBlock(const Slot& slot) const {
  const int64_t first_token = slot.num_computed + 1 - limits_.attention_reach;
  return limits_.attention_reach == 0 || first_token < 0 ? 0 : first_token / limits_.block_size;
}

absl::Status BatchState::CheckUnused(int32_t num_blocks) const {
  for (size_t i = 0; i < slots_.size(); ++i) {
    const Slot& slot = slots_[i];
    if (!slot.in_use) continue;
    // Blocks that hold guesses alone may have been given back by now.
    const size_t certain =
        (slot.tokens.size() - slot.num_drafts + limits_.block_size - 1) / limits_.block_size;
    for (size_t b = FirstSeenBlock(slot); b < std::min(certain, slot.block_ids.size()); ++b) {
      if (slot.block_ids[b] >= num_blocks)
        return absl::FailedPreconditionError(absl::StrCat("slot ", i, " has block ", slot.block_ids[b]));
    }
  }
  return absl::OkStatus();
}

absl::Status BatchState::Branch(const v1::StepRequest& request) {
  block_edits_.clear();
  added_slots_.clear();
  std::vector<Slot> sources;  // copied before any slot is written
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

absl::Status BatchState::Free(const v1::StepRequest& request) {
  for (int32_t slot : request.freed_slots()) {
    RETURN_IF_ERROR(CheckSlot(slot));
    if (!slots_[slot].in_use) return InvalidStep("slot ", slot, " is freed but not in use");
    slots_[slot].in_use = false;  // the vectors keep their memory for the next sequence
    slots_[slot].sampling.reset();
  }
  return absl::OkStatus();
}

absl::Status BatchState::CheckCopies(const v1::StepRequest& request) const {
  for (const v1::BlockCopy& copy : request.copies()) {
    for (int32_t block : {copy.src(), copy.dst()}) {
      if (block <= kNullBlock || block >= limits_.num_blocks)
        return InvalidStep("a copy names block ", block, " of ", limits_.num_blocks);
    }
  }
  return absl::OkStatus();
}

absl::Status BatchState::Add(const v1::StepRequest& request) {
  StepSamplings samplings;
  for (const v1::StepSampling& sampling : request.samplings())
    samplings.push_back(ParseSampling(sampling, limits_.vocab_size));
  for (const v1::NewSequence& sequence : request.new_sequences())
    RETURN_IF_ERROR(AddSequence(sequence, samplings));
  return absl::OkStatus();
}

absl::Status BatchState::AddSequence(const v1::NewSequence& sequence, const StepSamplings& samplings) {
  ASSIGN_OR_RETURN(Slot* const slot, TakeSlot(sequence.slot()));
  slot->error = ReadSequence(sequence, samplings, slot);
  if (!slot->error.ok()) return absl::OkStatus();
  added_slots_.push_back(sequence.slot());
  return AppendBlocks(sequence.slot(), sequence.block_ids());
}

absl::StatusOr<Slot*> BatchState::TakeSlot(int32_t index) {
  RETURN_IF_ERROR(CheckSlot(index));
  Slot& slot = slots_[index];
  if (slot.in_use) return InvalidStep("slot ", index, " is given to a new sequence but in use");
  slot.in_use = true;
  slot.num_drafts = 0;
  ++slot.generation;
  slot.block_ids.clear();
  return &slot;
}

absl::Status BatchState::ReadSequence(const v1::NewSequence& sequence, const StepSamplings& samplings,
                                      Slot* slot) const {
  const int32_t num_tokens = sequence.token_ids_size();
  if (num_tokens < 1 || num_tokens > limits_.max_model_len) {
    return InvalidStep("slot ", sequence.slot(), ": ", num_tokens, " tokens, allowed are 1 to ",
                       limits_.max_model_len);
  }
  if (sequence.num_prompt_tokens() < 1 || sequence.num_prompt_tokens() > num_tokens) {
    return InvalidStep("slot ", sequence.slot(), ": ", sequence.num_prompt_tokens(), " prompt tokens of ",
                       num_tokens);
  }
  if (sequence.num_computed_tokens() < 0 || sequence.num_computed_tokens() >= num_tokens) {
    return InvalidStep("slot ", sequence.slot(), ": ", sequence.num_computed_tokens(), " computed tokens of ",
                       num_tokens);
  }
  RETURN_IF_ERROR(CheckTokenIds(sequence.token_ids(), limits_.vocab_size));
  RETURN_IF_ERROR(CheckPooling(sequence));
  RETURN_IF_ERROR(CheckAdapter(sequence));
  const int32_t index = sequence.sampling_index(), num_samplings = static_cast<int32_t>(samplings.size());
  if (index < 0 || index >= num_samplings)
    return InvalidStep("slot ", sequence.slot(), ": sampling ", index, " of ", num_samplings);
  ASSIGN_OR_RETURN(slot->sampling, samplings[index]);
  slot->tokens.reserve(limits_.max_model_len + 1);
  slot->tokens.assign(sequence.token_ids().begin(), sequence.token_ids().end());
  slot->num_prompt_tokens = sequence.num_prompt_tokens();
  slot->num_computed = sequence.num_computed_tokens();
  slot->pooling = sequence.pooling();
  slot->adapter_slot = sequence.adapter_slot();
  slot->seed = sequence.seed();
  return absl::OkStatus();
}

absl::Status BatchState::CheckAdapter(const v1::NewSequence& sequence) const {
  const int32_t slot = sequence.adapter_slot();
  if (slot == 0) return absl::OkStatus();
  if (slot > 0 && slot <= static_cast<int32_t>(adapters_.size()) && adapters_[slot - 1])
    return absl::OkStatus();
  return InvalidStep("slot ", sequence.slot(), ": there is no adapter in slot ", slot);
}

absl::Status BatchState::AppendBlocks(int32_t slot,
                                      const google::protobuf::RepeatedField<int32_t>& block_ids) {
  std::vector<int32_t>& table = slots_[slot].block_ids;
  if (block_ids.size() > limits_.max_blocks_per_seq() - static_cast<int32_t>(table.size())) {
    return InvalidStep("slot ", slot, ": more than ", limits_.max_blocks_per_seq(), " blocks");
  }
  for (int32_t block : block_ids) {
    const bool may_be_null = null_block_allowed_ || table.size() < FirstSeenBlock(slots_[slot]);
    if (block < kNullBlock || (block == kNullBlock && !may_be_null) || block >= limits_.num_blocks)
      return InvalidStep("slot ", slot, ": block ", block, " of ", limits_.num_blocks);
    block_edits_.push_back({slot, static_cast<int32_t>(table.size()), block});
    table.push_back(block);
  }
  return absl::OkStatus();
}

absl::Status BatchState::Schedule(const v1::StepRequest& request) {
  scheduled_.clear();
  forked_.clear();
  refused_slots_.clear();
  num_scheduled_tokens_ = num_draft_tokens_ = 0;
  std::fill(slot_scheduled_.begin(), slot_scheduled_.end(), false);
  for (const v1::ScheduledSequence& sequence : request.sequences())
    RETURN_IF_ERROR(ScheduleSequence(sequence));
  RETURN_IF_ERROR(CheckBranchesHaveInput(request));
  // Nothing runs in such a step, so the device would not get the new sequences' block tables.
  if (!scheduled_.empty()) return absl::OkStatus();
  for (const int32_t slot : added_slots_) {
    if (slots_[slot].error.ok()) return InvalidStep("slot ", slot, " is new, but no sequence is scheduled");
  }
  return absl::OkStatus();
}

absl::Status BatchState::ScheduleSequence(const v1::ScheduledSequence& sequence) {
  RETURN_IF_ERROR(CheckSlot(sequence.slot()));
  Slot& slot = slots_[sequence.slot()];
  if (!slot.in_use) return InvalidStep("slot ", sequence.slot(), " is scheduled but not in use");
  if (slot_scheduled_[sequence.slot()]) return InvalidStep("slot ", sequence.slot(), " is scheduled twice");
  slot_scheduled_[sequence.slot()] = true;
  const bool names_input = sequence.input_token_ids_size() > 0;
  if (names_input && slot.pools())
    return InvalidStep("slot ", sequence.slot(), ": input tokens of a sequence that pools");
  if (!names_input && (slot.num_drafts > 0 || sequence.num_draft_tokens() != 0))
    return InvalidStep("slot ", sequence.slot(), ": a draft without input tokens, or behind it");
  if (slot.error.ok() && names_input) RETURN_IF_ERROR(ReplaceTokens(sequence));
  if (!slot.error.ok()) {
    refused_slots_.push_back(sequence.slot());
    return absl::OkStatus();
  }

  const int32_t known = static_cast<int32_t>(slot.tokens.size()), n = sequence.num_tokens();
  if (n < 1 || n > known - slot.num_computed) {
    return InvalidStep("slot ", sequence.slot(), ": ", n, " tokens scheduled, ", known - slot.num_computed,
                       " are known");
  }
  if (n > limits_.max_num_batched_tokens - num_scheduled_tokens_) {
    return InvalidStep("more than ", limits_.max_num_batched_tokens, " tokens");
  }
  const int32_t end = slot.num_computed + n;
  if (end > limits_.max_model_len)
    return InvalidStep("slot ", sequence.slot(), ": ", end, " tokens, more than max_model_len");
  RETURN_IF_ERROR(AppendBlocks(sequence.slot(), sequence.new_block_ids()));
  if (static_cast<int64_t>(slot.block_ids.size()) * limits_.block_size < end) {
    return InvalidStep("slot ", sequence.slot(), ": ", slot.block_ids.size(), " blocks for ", end, " tokens");
  }
  const bool samples = end == known && !slot.pools();
  RETURN_IF_ERROR(CheckProposals(sequence, samples));
  scheduled_.push_back({sequence.slot(), slot.num_computed, n, samples, sequence.num_draft_tokens(),
                        sequence.num_proposals()});
  num_scheduled_tokens_ += n;
  slot.num_computed = end;
  return absl::OkStatus();
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
  // Tokens become known in order, so the last token tells of all.
  if (slot.tokens.back() == kUnknownToken)
    return InvalidStep("slot ", sequence.slot(), ": input tokens while others are pending");
  RETURN_IF_ERROR(CheckDraft(sequence));
  slot.error = CheckTokenIds(sequence.input_token_ids(), limits_.vocab_size);
  if (!slot.error.ok()) return absl::OkStatus();
  const bool is_known = slot.num_drafts == 0 && sequence.num_draft_tokens() == 0 &&
                        static_cast<int32_t>(slot.tokens.size()) == start + count &&
                        std::equal(sequence.input_token_ids().begin(), sequence.input_token_ids().end(),
                                   slot.tokens.begin() + start);
  slot.tokens.resize(start);
  slot.tokens.insert(slot.tokens.end(), sequence.input_token_ids().begin(), sequence.input_token_ids().end());
  slot.num_computed = start;
  const auto num_blocks = static_cast<size_t>((start + limits_.block_size - 1) / limits_.block_size);
  if (slot.num_drafts > 0 && slot.block_ids.size() > num_blocks) slot.block_ids.resize(num_blocks);
  slot.num_drafts = sequence.num_draft_tokens();
  const bool is_added =
      std::find(added_slots_.begin(), added_slots_.end(), sequence.slot()) != added_slots_.end();
  if (slot.sampling->has_penalties() && !is_added && !is_known) added_slots_.push_back(sequence.slot());
  return absl::OkStatus();
}

absl::Status BatchState::CheckDraft(const v1::ScheduledSequence& sequence) {
  const int32_t count = sequence.num_draft_tokens();
  if (count < 0 || count >= sequence.num_tokens() || count > kMaxStepDraftTokens - num_draft_tokens_)
    return InvalidStep("slot ", sequence.slot(), ": ", count, " draft tokens of ", sequence.num_tokens());
  num_draft_tokens_ += count;
  return absl::OkStatus();
}

absl::Status BatchState::CheckProposals(const v1::ScheduledSequence& sequence, bool samples) const {
  const int32_t most = samples ? limits_.max_proposals : 0;
  if (sequence.num_proposals() >= 0 && sequence.num_proposals() <= most) return absl::OkStatus();
  return InvalidStep("slot ", sequence.slot(), ": ", sequence.num_proposals(),
                     " proposals, allowed are 0 to ", most);
}

absl::Status BatchState::Fork(const v1::StepRequest& request) {
  for (const v1::SequenceFork& fork : request.forks()) RETURN_IF_ERROR(ForkSequence(fork));
  return absl::OkStatus();
}

absl::Status BatchState::ForkSequence(const v1::SequenceFork& fork) {
  RETURN_IF_ERROR(CheckSlot(fork.source_slot()));
  if (!slot_scheduled_[fork.source_slot()])
    return InvalidStep("slot ", fork.slot(), " forks slot ", fork.source_slot(), ", which is not scheduled");
  ASSIGN_OR_RETURN(Slot* const slot, TakeSlot(fork.slot()));
  const Slot& source = slots_[fork.source_slot()];
  slot->error = source.error;
  if (!slot->error.ok()) {
    refused_slots_.push_back(fork.slot());
    return absl::OkStatus();
  }
  const bool samples = source.num_computed == static_cast<int32_t>(source.tokens.size()) &&
                       source.num_drafts == 0 && !source.pools();
  if (!samples || std::find(source.tokens.begin(), source.tokens.end(), kUnknownToken) != source.tokens.end())
    return InvalidStep("slot ", fork.slot(), " forks slot ", fork.source_slot(), ", which does not sample");
  slot->tokens.reserve(limits_.max_model_len + 1);
  slot->tokens = source.tokens;
  slot->num_prompt_tokens = source.num_prompt_tokens;
  slot->num_computed = source.num_computed;
  slot->sampling = source.sampling;
  slot->pooling = v1::STEP_POOLING_NONE;
  slot->adapter_slot = source.adapter_slot;
  slot->seed = fork.seed();
  if (static_cast<int64_t>(fork.block_ids_size()) * limits_.block_size < slot->num_computed)
    return InvalidStep("slot ", fork.slot(), ": ", fork.block_ids_size(), " blocks for ", slot->num_computed,
                       " tokens");
  added_slots_.push_back(fork.slot());
  forked_.push_back({fork.slot(), fork.source_slot()});
  return AppendBlocks(fork.slot(), fork.block_ids());
}

int32_t BatchState::AppendToken(int32_t index, int32_t token) {
  slots_[index].tokens.push_back(token);
  return static_cast<int32_t>(slots_[index].tokens.size()) - 1;
}

void BatchState::SetToken(int32_t slot, int64_t generation, int32_t index, int32_t token) {
  if (slots_[slot].generation == generation) slots_[slot].tokens[index] = token;
}

}  // namespace somnus
