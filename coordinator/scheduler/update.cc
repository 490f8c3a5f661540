// The half of the Scheduler that applies replies: which token belongs to which sequence, and which sequences
// end.

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "coordinator/scheduler/beam_group.h"
#include "coordinator/scheduler/scheduler.h"
#include "coordinator/scheduler/step_messages.h"

namespace somnus {

namespace {

absl::Status ToStatus(const v1::SlotError& error) {
  const auto code = static_cast<absl::StatusCode>(error.code());
  const absl::Status status(code, error.message());
  return status.ok() ? absl::InternalError(error.message()) : status;
}

}  // namespace

struct Scheduler::ReplyBySlot {
  // Where the first of a slot's messages is; empty where there are no such messages.
  template <typename Message>
  using BySlot = std::vector<const Message* const*>;

  ReplyBySlot(const v1::StepReply& step_reply, int32_t num_slots)
      : reply(step_reply),
        tokens(Index(reply.tokens(), num_slots)),
        prompt_logprobs(Index(reply.prompt_logprobs(), num_slots)),
        drafts(Index(reply.drafts(), num_slots)),
        errors(Index(reply.slot_errors(), num_slots)) {}

  // What names a slot that does not exist is nobody's.
  template <typename Message>
  static BySlot<Message> Index(const google::protobuf::RepeatedPtrField<Message>& messages,
                               int32_t num_slots) {
    BySlot<Message> by_slot(messages.empty() ? 0 : num_slots);
    for (int i = 0; i < messages.size(); ++i) {
      const int32_t slot = messages[i].slot();
      if (slot >= 0 && slot < num_slots && by_slot[slot] == nullptr) by_slot[slot] = messages.data() + i;
    }
    return by_slot;
  }
  template <typename Message>
  static const Message* Find(const BySlot<Message>& by_slot, int32_t slot) {
    return by_slot.empty() || by_slot[slot] == nullptr ? nullptr : *by_slot[slot];
  }
  // A slot's tokens, which come one after another.
  absl::Span<const v1::SampledToken* const> TokensOf(int32_t slot) const {
    if (Find(tokens, slot) == nullptr) return {};
    const v1::SampledToken* const* const first = tokens[slot];
    const v1::SampledToken* const* const all_end = reply.tokens().data() + reply.tokens_size();
    const auto* const end = std::find_if(first, all_end, [&](auto* token) { return token->slot() != slot; });
    return {first, static_cast<size_t>(end - first)};
  }

  const v1::StepReply& reply;
  const BySlot<v1::SampledToken> tokens;
  const BySlot<v1::PromptLogprobs> prompt_logprobs;
  const BySlot<v1::DraftTokens> drafts;
  const BySlot<v1::SlotError> errors;
};

absl::StatusOr<std::vector<SequenceOutput>> Scheduler::Update(const v1::StepReply& reply) {
  if (in_flight_.empty() || in_flight_.front().step_id != reply.step_id()) {
    return absl::InternalError(absl::StrCat("reply to step ", reply.step_id(), " is not due"));
  }
  InFlightStep step = std::move(in_flight_.front());
  in_flight_.pop_front();
  NoteSwaps(step, reply);
  BeginDraftReply(step);
  const ReplyBySlot by_slot(reply, options_.max_num_seqs);
  std::vector<SequenceOutput> outputs;
  outputs.reserve(step.entries.size());
  for (const ScheduledEntry& entry : step.entries) {
    if (!entry.dropped) ApplyEntry(entry, by_slot, &outputs);
  }
  step.entries.clear();
  spare_entries_ = std::move(step.entries);
  return outputs;
}

void Scheduler::ApplyEntry(const ScheduledEntry& entry, const ReplyBySlot& reply,
                           std::vector<SequenceOutput>* outputs) {
  const SequencePtr& sequence = entry.owner();
  RequestOutput output;
  output.num_cached_tokens = sequence->num_cached;
  absl::Status status;
  if (const v1::SlotError* error = ReplyBySlot::Find(reply.errors, entry.slot)) {
    status = ToStatus(*error);
    if (!ApplySlotError(entry, status)) return;
  } else if (!sequence->finished()) {  // else it has ended since, and its token is stale
    status = ApplyResult(entry, reply, &output);
  }
  if (status.ok()) {
    const bool has_output = !output.token_ids.empty() || !output.prompt_logprobs.empty() ||
                            output.finish_reason != FinishReason::kNone ||
                            (entry.samples && HasAdvanced(*sequence));
    if (has_output) outputs->push_back({sequence, std::move(output)});
    return;
  }
  DropInFlight(sequence);
  if (sequence->finished()) return;
  Finish(sequence);
  RequestOutput last;
  last.num_cached_tokens = sequence->num_cached;
  last.finish_reason = FinishReason::kError;
  last.error = status;
  outputs->push_back({sequence, std::move(last)});
}

absl::Status Scheduler::ApplyResult(const ScheduledEntry& entry, const ReplyBySlot& reply,
                                    RequestOutput* output) {
  RETURN_IF_ERROR(DeliverPromptLogprobs(ReplyBySlot::Find(reply.prompt_logprobs, entry.slot), entry.start,
                                        entry.num_tokens, entry.sequence.get(), output));
  if (!entry.samples) return absl::OkStatus();
  const absl::Span<const v1::SampledToken* const> tokens = reply.TokensOf(entry.slot);
  if (tokens.empty())
    return absl::InternalError(absl::StrCat("the reply has no token for slot ", entry.slot));
  if (entry.owner()->beams != nullptr) return ApplyBeam(entry, *tokens[0], output);
  --entry.sequence->num_pending;
  const v1::DraftTokens* const proposals = ReplyBySlot::Find(reply.drafts, entry.slot);
  if (!entry.draft_tokens.empty()) return AcceptDraft(entry, tokens, proposals, output);
  AcceptToken(entry.sequence, *tokens[0], output);
  TakeProposals(entry, proposals);
  if (entry.sequence->state == SequenceState::kRunning) speculation_.NoteToken(entry.sequence.get());
  return absl::OkStatus();
}

bool Scheduler::ApplySlotError(const ScheduledEntry& entry, const absl::Status& error) {
  if (absl::IsOutOfRange(error)) return true;  // what it computed is good
  const Sequence& bad = *entry.sequence;
  const SequencePtr& sequence = entry.owner();
  blocks_.ForgetPrefix(bad.tokens, bad.request.cache_salt);
  // Until now its blocks could be adopted, so sequences of the steps in flight may have done so.
  for (const InFlightStep& step : in_flight_) {
    for (const ScheduledEntry& other : step.entries) {
      const bool may_adopt = other.adopted && other.owner() != sequence && !other.owner()->finished();
      if (may_adopt && MayShareBlocks(*other.sequence, bad)) Recompute(other.owner());
    }
  }
  const bool may_be_anothers =
      sequence->num_adopted > 0 && !sequence->avoids_prefix_cache && !absl::IsInvalidArgument(error);
  if (sequence->finished() || !may_be_anothers) return true;
  sequence->avoids_prefix_cache = true;
  if (entry.samples) --entry.sequence->num_pending;
  Recompute(sequence);
  return false;
}

bool Scheduler::MayShareBlocks(const Sequence& a, const Sequence& b) const {
  const auto size = static_cast<size_t>(options_.blocks.block_size);
  return a.id != b.id && a.request.cache_salt == b.request.cache_salt && a.tokens.size() >= size &&
         b.tokens.size() >= size && std::equal(a.tokens.begin(), a.tokens.begin() + size, b.tokens.begin());
}

// Drops the results in flight and puts the sequence back to waiting.
void Scheduler::Recompute(const SequencePtr& sequence) {
  DropInFlight(sequence);
  if (sequence->state == SequenceState::kRunning) Preempt({sequence}, PreemptionCause::kFailure);
  if (sequence->is_swapped) DropSwapped(sequence.get());
}

// The results of the steps in flight will not count for the sequence.
void Scheduler::DropInFlight(const SequencePtr& sequence) {
  for (InFlightStep& step : in_flight_) {
    for (ScheduledEntry& entry : step.entries) {
      if (entry.dropped || entry.owner() != sequence) continue;
      entry.dropped = true;
      if (entry.samples) --entry.sequence->num_pending;
    }
  }
}

void Scheduler::AcceptToken(const SequencePtr& sequence, const v1::SampledToken& token,
                            RequestOutput* output) {
  sequence->Charge(UserAccounts::kOutputWeight);
  if (sequence->request.max_tokens <= 0) {  // the request was for the prompt alone
    output->finish_reason = FinishReason::kLength;
    Finish(sequence);
    return;
  }
  sequence->tokens.push_back(token.token_id());
  ++stats_.generation_tokens;
  output->token_ids.push_back(token.token_id());
  if (sequence->request.sampling->num_logprobs >= 0)
    output->logprobs.push_back(FromMessage(token.logprobs()));
  if (sequence->state == SequenceState::kRunning && FillsBlocks(*sequence, 1)) Commit(*sequence);
  output->finish_reason = CheckStop(*sequence, output);
  if (output->finish_reason != FinishReason::kNone) Finish(sequence);
}

FinishReason Scheduler::CheckStop(const Sequence& sequence, RequestOutput* output) const {
  const SamplingParams& params = *sequence.request.sampling;
  const int32_t token = sequence.tokens.back();
  const auto contains = [token](const std::vector<int32_t>& ids) {
    return std::find(ids.begin(), ids.end(), token) != ids.end();
  };
  if (sequence.num_outputs() >= params.min_tokens) {
    if (contains(params.eos_token_ids)) return FinishReason::kStop;
    if (contains(params.stop_token_ids)) {
      output->stop_token_id = token;
      return FinishReason::kStop;
    }
  }
  const bool full = static_cast<int64_t>(sequence.tokens.size()) >= options_.max_model_len;
  if (full || sequence.num_outputs() >= sequence.request.max_tokens) return FinishReason::kLength;
  return FinishReason::kNone;
}

}  // namespace somnus
