#include "coordinator/scheduler/results.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "coordinator/scheduler/beam_group.h"
#include "coordinator/scheduler/constraints.h"
#include "coordinator/scheduler/step_messages.h"

namespace somnus {
namespace {

absl::Status ToStatus(const v1::SlotError& error) {
  const auto code = static_cast<absl::StatusCode>(error.code());
  const absl::Status status(code, error.message());
  return status.ok() ? absl::InternalError(error.message()) : status;
}

}  // namespace

std::vector<SequenceOutput> Results::Apply(const InFlightStep& step, const v1::StepReply& reply) {
  host_tier_.NoteReply(step, reply);
  drafts_.BeginReply(step);
  const ReplyBySlot by_slot(reply, options_.max_num_seqs);
  std::vector<SequenceOutput> outputs;
  outputs.reserve(step.entries.size());
  for (const ScheduledEntry& entry : step.entries) {
    if (!entry.dropped) ApplyEntry(entry, by_slot, &outputs);
  }
  return outputs;
}

void Results::ApplyEntry(const ScheduledEntry& entry, const ReplyBySlot& reply,
                         std::vector<SequenceOutput>* outputs) {
  const SequencePtr& sequence = entry.owner();
  absl::Status status;
  if (const v1::SlotError* error = reply.Error(entry.slot)) {
    status = ToStatus(*error);
    if (!ApplySlotError(entry, status)) return;
    if (absl::IsOutOfRange(status)) status = Constraints::Explain(*entry.sequence, status);
    if (absl::IsInternal(status) && !sequence->finished()) ++stats_.corrupted_requests;
  } else if (sequence->finished()) {  // the sequence has ended since, and its token is stale
    return;
  } else {
    // Most entries have an output, so the output is made in its place in the list.
    outputs->emplace_back().sequence = sequence;
    RequestOutput& output = outputs->back().output;
    output.num_cached_tokens = sequence->num_cached;
    status = ApplyResult(entry, reply, &output);
    const bool has_output = !output.token_ids.empty() || !output.prompt_logprobs.empty() ||
                            output.finish_reason != FinishReason::kNone ||
                            (entry.samples && HasAdvanced(*sequence));
    if (!status.ok() || !has_output) outputs->pop_back();
  }
  if (!status.ok()) EndWithError(sequence, std::move(status), outputs);
}

void Results::EndWithError(const SequencePtr& sequence, absl::Status error,
                           std::vector<SequenceOutput>* outputs) {
  ledger_.Drop(sequence);
  if (sequence->finished()) return;
  sequences_.Finish(sequence);
  RequestOutput last;
  last.num_cached_tokens = sequence->num_cached;
  last.finish_reason = FinishReason::kError;
  last.error = std::move(error);
  outputs->push_back({sequence, std::move(last)});
}

absl::Status Results::ApplyResult(const ScheduledEntry& entry, const ReplyBySlot& reply,
                                  RequestOutput* output) {
  RETURN_IF_ERROR(DeliverPromptLogprobs(reply.PromptLogprobs(entry.slot), entry.start, entry.num_tokens,
                                        entry.sequence.get(), output));
  if (!entry.samples) return absl::OkStatus();
  if (entry.owner()->pools()) return ApplyPooled(entry, reply.Pooled(entry.slot), output);
  const absl::Span<const v1::SampledToken* const> tokens = reply.Tokens(entry.slot);
  if (tokens.empty())
    return absl::InternalError(absl::StrCat("the reply has no token for slot ", entry.slot));
  if (entry.owner()->beam.group != nullptr) return ApplyBeam(entry, *tokens[0], output);
  return ApplyTokens(entry, tokens, reply.Proposals(entry.slot), output);
}

absl::Status Results::ApplyBeam(const ScheduledEntry& entry, const v1::SampledToken& token,
                                RequestOutput* output) {
  RETURN_IF_ERROR(beams_.Apply(entry, token, output));
  if (output->finish_reason == FinishReason::kNone) return absl::OkStatus();
  const SequencePtr& leader = entry.owner();
  sequences_.Finish(leader);
  Beams::TakeBestBeam(*output, leader.get());
  return absl::OkStatus();
}

absl::Status Results::ApplyPooled(const ScheduledEntry& entry, const v1::PooledState* pooled,
                                  RequestOutput* output) {
  --entry.sequence->num_pending;
  if (pooled == nullptr || pooled->values().empty())
    return absl::InternalError(absl::StrCat("the reply has no pooled vector for slot ", entry.slot));
  output->pooled.assign(pooled->values().begin(), pooled->values().end());
  output->finish_reason = FinishReason::kStop;
  sequences_.Finish(entry.sequence);
  return absl::OkStatus();
}

absl::Status Results::ApplyTokens(const ScheduledEntry& entry,
                                  absl::Span<const v1::SampledToken* const> tokens,
                                  const v1::DraftTokens* proposals, RequestOutput* output) {
  const SequencePtr& sequence = entry.sequence;
  --sequence->num_pending;
  if (entry.draft_tokens.empty()) {
    tokens = tokens.first(1);
  } else {
    RETURN_IF_ERROR(Drafts::Check(entry, tokens));
    // A preempted sequence has nothing computed any more except the tokens that were swapped out.
    if (sequence->state == SequenceState::kRunning)
      sequence->num_computed += static_cast<int64_t>(tokens.size()) - 1;
  }
  for (size_t i = 0; i < tokens.size() && !sequence->finished(); ++i)
    RETURN_IF_ERROR(AcceptToken(sequence, *tokens[i], output));
  drafts_.NoteAccepted(entry, tokens.size(), proposals);
  return absl::OkStatus();
}

absl::Status Results::AcceptToken(const SequencePtr& sequence, const v1::SampledToken& token,
                                  RequestOutput* output) {
  sequence->Charge(UserAccounts::kOutputWeight);
  if (sequence->request.max_tokens <= 0) {  // the request was for the prompt alone
    output->finish_reason = FinishReason::kLength;
    sequences_.Finish(sequence);
    return absl::OkStatus();
  }
  if (sequence->request.constraint != nullptr)
    RETURN_IF_ERROR(Constraints::Accept(sequence.get(), token.token_id()));
  sequence->tokens.push_back(token.token_id());
  ++stats_.generation_tokens;
  output->token_ids.push_back(token.token_id());
  if (sequence->request.sampling->num_logprobs >= 0)
    output->logprobs.push_back(FromMessage(token.logprobs()));
  if (sequence->state == SequenceState::kRunning &&
      sequence->MayHaveFilledBlock(1, options_.blocks.block_size))
    blocks_.Commit(sequence->id, sequence->tokens, sequence->num_computed);
  output->finish_reason = CheckStop(*sequence, output);
  if (output->finish_reason != FinishReason::kNone) sequences_.Finish(sequence);
  return absl::OkStatus();
}

FinishReason Results::CheckStop(const Sequence& sequence, RequestOutput* output) const {
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
  if (Constraints::IsComplete(sequence)) return FinishReason::kStop;  // also under ignore_eos
  const bool full = static_cast<int64_t>(sequence.tokens.size()) >= options_.max_model_len;
  if (full || sequence.num_outputs() >= sequence.request.max_tokens) return FinishReason::kLength;
  return FinishReason::kNone;
}

bool Results::ApplySlotError(const ScheduledEntry& entry, const absl::Status& error) {
  if (absl::IsOutOfRange(error)) return true;  // the computed contents are good
  const Sequence& bad = *entry.sequence;
  const SequencePtr& sequence = entry.owner();
  blocks_.cache().ForgetPrefix(bad.tokens, bad.request.cache_salt);
  // Until now its blocks could be adopted, so that sequences of the steps in flight may have done so.
  const auto may_share = [&](const Sequence& other) { return MayShareBlocks(other, bad); };
  for (const SequencePtr& adopter : ledger_.Adopters(sequence, may_share)) Recompute(adopter);
  const bool may_be_of_others =
      sequence->num_adopted > 0 && !sequence->avoids_prefix_cache && !absl::IsInvalidArgument(error);
  if (sequence->finished() || !may_be_of_others) return true;
  sequence->avoids_prefix_cache = true;
  if (entry.samples) --entry.sequence->num_pending;
  Recompute(sequence);
  return false;
}

bool Results::MayShareBlocks(const Sequence& a, const Sequence& b) const {
  const auto size = static_cast<size_t>(options_.blocks.block_size);
  return a.id != b.id && a.request.cache_salt == b.request.cache_salt && a.tokens.size() >= size &&
         b.tokens.size() >= size && std::equal(a.tokens.begin(), a.tokens.begin() + size, b.tokens.begin());
}

void Results::Recompute(const SequencePtr& sequence) {
  ledger_.Drop(sequence);
  if (sequence->state == SequenceState::kRunning) sequences_.Preempt({sequence}, PreemptionCause::kFailure);
  if (sequence->held.is_swapped) host_tier_.OnForget(sequence.get());
}

}  // namespace somnus
