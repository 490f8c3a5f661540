#include "coordinator/grpc/gateway/request_translation.h"

#include <algorithm>
#include <limits>
#include <optional>

namespace somnus::gateway {
namespace {

// Too large a number stays too large.
int32_t Clamped(uint32_t number) {
  return static_cast<int32_t>(std::min<uint32_t>(number, std::numeric_limits<int32_t>::max()));
}

// Ids above INT32_MAX become negative, which no id is.
template <typename From, typename To>
void CopyIds(const From& from, To* to) {
  to->Reserve(from.size());
  for (const uint32_t id : from) to->Add(static_cast<int32_t>(id));
}

std::optional<ApiError> CheckSupported(const wire::GenerateRequest& request) {
  if (request.has_mm_inputs() || !request.extra_mm_inputs().empty())
    return BadRequest("mm_inputs", "the model takes text alone");
  if (request.has_media_refs()) return BadRequest("media_refs", "the model takes text alone");
  if (request.has_kv_transfer_params() || request.has_kv_transfer_params_json()) {
    return BadRequest("kv_transfer_params",
                      "this server computes prompts and outputs itself, and takes no KV cache from others");
  }
  if (request.has_data_parallel_rank() && request.data_parallel_rank() != 0)
    return BadRequest("data_parallel_rank", "must be 0 or not set: this server chooses the replica itself");
  return std::nullopt;
}

// Cuts the prompt to its last tokens.
std::optional<ApiError> Truncate(const wire::SamplingParams& s, int32_t max_model_len,
                                 v1::GenerateRequest* to) {
  const char* const field = "truncate_prompt_tokens";
  if (!to->has_token_ids()) return BadRequest(field, "needs a prompt of token ids");
  if (s.truncate_prompt_tokens() == 0 || s.truncate_prompt_tokens() < -1)
    return BadRequest(field, "must be -1 or at least 1");
  const int32_t outputs = s.has_max_tokens() ? std::clamp(Clamped(s.max_tokens()), 1, max_model_len) : 1;
  const int32_t room = std::max(1, max_model_len - outputs);
  const int32_t keep = s.truncate_prompt_tokens() == -1 ? room : s.truncate_prompt_tokens();
  auto* const ids = to->mutable_token_ids()->mutable_ids();
  if (ids->size() > keep) ids->erase(ids->begin(), ids->end() - keep);
  return std::nullopt;
}

void TranslateConstraint(const wire::SamplingParams& from, v1::SamplingParams* sampling) {
  using Constraint = wire::SamplingParams::ConstraintCase;
  const Constraint kind = from.constraint_case();
  if (kind == Constraint::CONSTRAINT_NOT_SET) return;
  if (kind == Constraint::kJsonObject && !from.json_object()) return;
  v1::StructuredOutputs* const to = sampling->mutable_structured_outputs();
  if (kind == Constraint::kJsonSchema) to->set_json_schema(from.json_schema());
  if (kind == Constraint::kRegex) to->set_regex(from.regex());
  if (kind == Constraint::kGrammar) to->set_grammar(from.grammar());
  if (kind == Constraint::kStructuralTag) to->set_structural_tag(from.structural_tag());
  if (kind == Constraint::kJsonObject) to->set_json_object(true);
  if (kind == Constraint::kChoice) *to->mutable_choice()->mutable_texts() = from.choice().choices();
}

// The protocol has no presence for most numbers: 0 is not set, where 0 makes no sense.
void TranslateSampling(const wire::SamplingParams& from, int32_t max_model_len, v1::SamplingParams* to) {
  // Without a length the output goes on to the end of the context; the reader takes off the prompt's tokens.
  to->set_max_tokens(from.has_max_tokens() ? Clamped(from.max_tokens()) : max_model_len);
  to->set_min_tokens(Clamped(from.min_tokens()));
  if (from.has_temperature()) to->set_temperature(from.temperature());
  if (from.top_p() != 0) to->set_top_p(from.top_p());
  to->set_top_k(Clamped(from.top_k()));
  to->set_min_p(from.min_p());
  to->set_presence_penalty(from.presence_penalty());
  to->set_frequency_penalty(from.frequency_penalty());
  if (from.repetition_penalty() != 0) to->set_repetition_penalty(from.repetition_penalty());
  *to->mutable_logit_bias() = from.logit_bias();
  if (from.has_seed()) to->set_seed(from.seed());
  *to->mutable_stop() = from.stop();
  CopyIds(from.stop_token_ids(), to->mutable_stop_token_ids());
  to->set_include_stop_str_in_output(from.include_stop_str_in_output());
  to->set_ignore_eos(from.ignore_eos());
  if (from.has_logprobs()) to->set_logprobs(from.logprobs());
  if (from.has_prompt_logprobs()) to->set_prompt_logprobs(from.prompt_logprobs());
  to->set_n(Clamped(from.n()));
  to->set_skip_special_tokens(from.skip_special_tokens());
  TranslateConstraint(from, to);
}

}  // namespace

RequestOrError TranslateRequest(const wire::GenerateRequest& request, int32_t max_model_len) {
  if (std::optional<ApiError> error = CheckSupported(request)) return *std::move(error);
  v1::GenerateRequest to;
  to.set_request_id(request.request_id());
  if (request.has_text()) to.set_text(request.text());
  if (request.has_tokenized())
    CopyIds(request.tokenized().input_ids(), to.mutable_token_ids()->mutable_ids());
  if (request.sampling_params().has_truncate_prompt_tokens()) {
    if (std::optional<ApiError> error = Truncate(request.sampling_params(), max_model_len, &to))
      return *std::move(error);
  }
  TranslateSampling(request.sampling_params(), max_model_len, to.mutable_sampling());
  return to;
}

}  // namespace somnus::gateway
