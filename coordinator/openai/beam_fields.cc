// Reads the fields of a beam search. A beam search has no other sampling parameters: as in vLLM such
// parameters are checked and change nothing. Fields that promise which tokens never come are refused.
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/openai/request_fields.h"
#include "coordinator/openai/response_json.h"

namespace somnus {
namespace {

// vLLM has no such field; transformers has. Without the field a search is as vLLM's.
EarlyStopping ReadEarlyStopping(FieldReader* fields) {
  const nlohmann::json* value = fields->Find("early_stopping");
  if (value == nullptr || (value->is_string() && *value == "never")) return EarlyStopping::kNever;
  if (value->is_boolean()) return value->get<bool>() ? EarlyStopping::kAtWidth : EarlyStopping::kHeuristic;
  fields->Fail("early_stopping", "early_stopping must be true, false or \"never\"");
  return EarlyStopping::kNever;
}

void CheckLogprobs(FieldReader* fields, const ApiLimits& limits, const GenerateParams& params) {
  if (!params.logprobs) return;
  int64_t most = 0;
  for (const GenerateParams::Prompt& prompt : params.prompts)
    most += static_cast<int64_t>(prompt.max_tokens) * params.n * (1 + params.num_top_logprobs);
  if (most <= limits.max_response_bytes / kLogprobJsonBytes) return;
  fields->Fail("logprobs", absl::StrCat("the answers of the beam search may have ", most,
                                        " log-probabilities, more than a response holds"));
}

}  // namespace

void ReadBeamSearch(FieldReader* fields, const ServedModel& model, const ApiLimits& limits,
                    GenerateParams* params) {
  if (!fields->Bool("use_beam_search").value_or(false)) return;
  if (params->stream) fields->Fail("stream", "Streaming is not currently supported with beam search");
  if (params->return_weight_versions)
    fields->Fail("return_weight_versions", "return_weight_versions is not supported with beam search");
  for (const char* name : {"bad_words", "allowed_token_ids"}) {
    const nlohmann::json* value = fields->Find(name);
    if (value != nullptr && !value->empty())
      fields->Fail(name, absl::StrCat(name, " is not supported with beam search"));
  }
  if (params->echo_only) fields->Fail("max_tokens", "max_tokens must be at least 1 with beam search");
  if (2 * static_cast<int64_t>(params->n) > model.config.vocab_size)
    fields->Fail("n", absl::StrCat("n must be at most half of the vocabulary of ", model.config.vocab_size,
                                   " with beam search"));
  CheckLogprobs(fields, limits, *params);
  BeamSearchParams beams;
  beams.width = params->n;
  constexpr double kMax = std::numeric_limits<double>::max();
  beams.length_penalty = fields->Number("length_penalty", -kMax, kMax).value_or(1.0);
  beams.early_stopping = ReadEarlyStopping(fields);
  beams.eos_token_ids = model.config.eos_token_ids;
  beams.ignore_eos = fields->Bool("ignore_eos").value_or(false);
  beams.includes_eos = params->output.include_stop_str_in_output;
  beams.num_logprobs = params->logprobs ? params->num_top_logprobs : -1;
  params->sampling = SamplingParams();
  params->sampling.temperature = 0;
  params->sampling.num_logprobs = 2 * params->n;
  params->sampling.beam_search = std::move(beams);
  params->prompt_logprobs = false;
  params->output.stop.clear();
  params->output.min_tokens = 0;
  // The text never has the EOS token: the token is the last of an answer that includes the token, and no
  // token of any other answer.
  params->output.include_stop_str_in_output = !params->sampling.beam_search->includes_eos;
}

}  // namespace somnus
