#include "worker/runner/slot_sampling.h"

#include <algorithm>

#include "base/status_macros.h"
#include "proto/limits.h"
#include "worker/runner/step_checks.h"

namespace somnus {

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
  // A checkpoint may name stop tokens that the vocabulary lacks: such tokens cannot be chosen anyway.
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
