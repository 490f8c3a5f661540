// The half of the Scheduler that takes replies: which token belongs to whom, and who has ended.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "coordinator/scheduler/scheduler.h"
#include "coordinator/scheduler/step_messages.h"

namespace somnus {

absl::StatusOr<std::vector<SequenceOutput>> Scheduler::Update(const v1::StepReply& reply) {
  if (in_flight_.empty() || in_flight_.front().step_id != reply.step_id()) {
    return absl::InternalError(absl::StrCat("reply to step ", reply.step_id(), " is not due"));
  }
  const InFlightStep step = std::move(in_flight_.front());
  in_flight_.pop_front();
  absl::flat_hash_map<int32_t, const v1::SampledToken*> tokens;
  for (const v1::SampledToken& token : reply.tokens()) tokens.emplace(token.slot(), &token);
  absl::flat_hash_map<int32_t, const v1::PromptLogprobs*> prompt_logprobs;
  for (const v1::PromptLogprobs& entry : reply.prompt_logprobs())
    prompt_logprobs.emplace(entry.slot(), &entry);

  std::vector<SequenceOutput> outputs;
  outputs.reserve(step.entries.size());
  for (const ScheduledEntry& entry : step.entries) {
    if (entry.sequence->finished()) continue;  // stopped or aborted since: what it sampled is stale
    auto token = tokens.find(entry.slot);
    auto logprobs = prompt_logprobs.find(entry.slot);
    RETURN_IF_ERROR(ApplyEntry(entry, token == tokens.end() ? nullptr : token->second,
                               logprobs == prompt_logprobs.end() ? nullptr : logprobs->second, &outputs));
  }
  return outputs;
}

absl::Status Scheduler::ApplyEntry(const ScheduledEntry& entry, const v1::SampledToken* token,
                                   const v1::PromptLogprobs* logprobs, std::vector<SequenceOutput>* outputs) {
  Sequence* sequence = entry.sequence.get();
  RequestOutput output;
  output.num_cached_tokens = sequence->num_cached;
  RETURN_IF_ERROR(DeliverPromptLogprobs(logprobs, entry.start, entry.num_tokens, sequence, &output));
  if (entry.samples) {
    if (token == nullptr)
      return absl::InternalError(absl::StrCat("the reply has no token for slot ", entry.slot));
    AcceptToken(entry.sequence, *token, &output);
  }
  if (entry.samples || !output.prompt_logprobs.empty())
    outputs->push_back({entry.sequence, std::move(output)});
  return absl::OkStatus();
}

void Scheduler::AcceptToken(const SequencePtr& sequence, const v1::SampledToken& token,
                            RequestOutput* output) {
  --sequence->num_pending;
  if (sequence->request.sampling.max_tokens <= 0) {  // only the prompt was wanted
    output->finish_reason = FinishReason::kLength;
    Finish(sequence);
    return;
  }
  sequence->tokens.push_back(token.token_id());
  ++stats_.generation_tokens;
  output->token_ids.push_back(token.token_id());
  if (sequence->request.sampling.num_logprobs >= 0) output->logprobs.push_back(FromMessage(token.logprobs()));
  if (sequence->state == SequenceState::kRunning) {
    blocks_.Commit(sequence->id, sequence->tokens, sequence->num_computed);
  }
  output->finish_reason = CheckStop(*sequence, output);
  if (output->finish_reason != FinishReason::kNone) Finish(sequence);
}

FinishReason Scheduler::CheckStop(const Sequence& sequence, RequestOutput* output) const {
  const SamplingParams& params = sequence.request.sampling;
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
  if (full || sequence.num_outputs() >= params.max_tokens) return FinishReason::kLength;
  return FinishReason::kNone;
}

}  // namespace somnus
