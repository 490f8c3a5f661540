#include "worker/runner/batch_state.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/null_block.h"
#include "base/status_macros.h"
#include "worker/runner/step_checks.h"

namespace somnus {
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

absl::Status BatchState::CheckUnused(int32_t num_blocks) const {
  for (size_t i = 0; i < slots_.size(); ++i) {
    const Slot& slot = slots_[i];
    if (!slot.in_use) continue;
    // Blocks that hold guesses alone may have been given back by now.
    const size_t certain =
        (slot.tokens.size() - slot.num_drafts + limits_.block_size - 1) / limits_.block_size;
    for (size_t b = 0; b < std::min(certain, slot.block_ids.size()); ++b) {
      if (slot.block_ids[b] >= num_blocks)
        return absl::FailedPreconditionError(absl::StrCat("slot ", i, " has block ", slot.block_ids[b]));
    }
  }
  return absl::OkStatus();
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
  const int32_t index = sequence.sampling_index(), num_samplings = static_cast<int32_t>(samplings.size());
  if (index < 0 || index >= num_samplings)
    return InvalidStep("slot ", sequence.slot(), ": sampling ", index, " of ", num_samplings);
  ASSIGN_OR_RETURN(slot->sampling, samplings[index]);
  slot->tokens.reserve(limits_.max_model_len + 1);
  slot->tokens.assign(sequence.token_ids().begin(), sequence.token_ids().end());
  slot->num_prompt_tokens = sequence.num_prompt_tokens();
  slot->num_computed = sequence.num_computed_tokens();
  slot->seed = sequence.seed();
  return absl::OkStatus();
}

absl::Status BatchState::AppendBlocks(int32_t slot,
                                      const google::protobuf::RepeatedField<int32_t>& block_ids) {
  std::vector<int32_t>& table = slots_[slot].block_ids;
  if (block_ids.size() > limits_.max_blocks_per_seq() - static_cast<int32_t>(table.size())) {
    return InvalidStep("slot ", slot, ": more than ", limits_.max_blocks_per_seq(), " blocks");
  }
  for (int32_t block : block_ids) {
    if (block <= kNullBlock || block >= limits_.num_blocks)
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
  RETURN_IF_ERROR(CheckProposals(sequence, end == known));
  scheduled_.push_back({sequence.slot(), slot.num_computed, n, end == known, sequence.num_draft_tokens(),
                        sequence.num_proposals()});
  num_scheduled_tokens_ += n;
  slot.num_computed = end;
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
  const bool samples =
      source.num_computed == static_cast<int32_t>(source.tokens.size()) && source.num_drafts == 0;
  if (!samples || std::find(source.tokens.begin(), source.tokens.end(), kUnknownToken) != source.tokens.end())
    return InvalidStep("slot ", fork.slot(), " forks slot ", fork.source_slot(), ", which does not sample");
  slot->tokens.reserve(limits_.max_model_len + 1);
  slot->tokens = source.tokens;
  slot->num_prompt_tokens = source.num_prompt_tokens;
  slot->num_computed = source.num_computed;
  slot->sampling = source.sampling;
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

absl::StatusOr<std::shared_ptr<const SlotSampling>> ParseSampling(const v1::StepSampling& proto,
                                                                  int32_t vocab_size) {
  // Written so that NaN is refused too.
  if (!(proto.temperature() >= 0)) return InvalidStep("temperature ", proto.temperature());
  if (proto.temperature() > 0 && !(proto.top_p() > 0 && proto.top_p() <= 1))
    return InvalidStep("top_p ", proto.top_p());
  if (!(proto.min_p() >= 0 && proto.min_p() <= 1)) return InvalidStep("min_p ", proto.min_p());
  if (!(proto.repetition_penalty() > 0))
    return InvalidStep("repetition_penalty ", proto.repetition_penalty());
  if (proto.num_logprobs() > kMaxStepLogprobs || proto.num_prompt_logprobs() > kMaxStepLogprobs) {
    return InvalidStep("more than ", kMaxStepLogprobs, " logprobs");
  }
  RETURN_IF_ERROR(CheckTokenIds(proto.allowed_token_ids(), vocab_size));
  auto out = std::make_shared<SlotSampling>();
  out->temperature = proto.temperature();
  out->top_p = proto.top_p();
  out->top_k = std::max(0, proto.top_k());
  out->min_p = proto.min_p();
  out->presence_penalty = proto.presence_penalty();
  out->frequency_penalty = proto.frequency_penalty();
  out->repetition_penalty = proto.repetition_penalty();
  out->min_tokens = proto.min_tokens();
  out->num_logprobs = std::max(-1, proto.num_logprobs());
  out->num_prompt_logprobs = std::max(-1, proto.num_prompt_logprobs());
  // A checkpoint may name stop tokens that its vocabulary lacks: they cannot be chosen anyway.
  for (int32_t id : proto.suppress_token_ids()) {
    if (id >= 0 && id < vocab_size) out->suppress_token_ids.push_back(id);
  }
  out->allowed_token_ids.assign(proto.allowed_token_ids().begin(), proto.allowed_token_ids().end());
  for (const auto& [id, bias] : proto.logit_bias()) {
    if (id < 0 || id >= vocab_size) return InvalidStep("logit_bias for token ", id);
    out->logit_bias.emplace_back(id, bias);
  }
  for (const v1::BadWord& word : proto.bad_words()) {
    RETURN_IF_ERROR(CheckTokenIds(word.token_ids(), vocab_size));
    if (word.token_ids_size() > 0)
      out->bad_words.emplace_back(word.token_ids().begin(), word.token_ids().end());
  }
  for (const v1::BadText& text : proto.bad_texts()) {
    RETURN_IF_ERROR(CheckTokenIds(text.token_ids(), vocab_size));
    ASSIGN_OR_RETURN(BadTextRule rule, BadTextRule::Create(text));
    out->bad_texts.push_back(std::move(rule));
  }
  return out;
}

}  // namespace somnus
