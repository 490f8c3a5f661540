#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/http/json_body.h"
#include "coordinator/openai/openai_request.h"
#include "coordinator/openai/request_fields.h"

namespace somnus {
namespace {

using Json = nlohmann::json;

constexpr int32_t kDefaultMaxTokens = 16;
constexpr int32_t kMaxLogprobs = 20;

// Adds an element of `prompt`: a text or a list of ids.
void AddPrompt(FieldReader* fields, const ServedModel& model, const Json& value, bool add_special_tokens,
               GenerateParams* params) {
  GenerateParams::Prompt prompt;
  if (value.is_string()) {
    const std::string& text = value.get_ref<const std::string&>();
    if (!MayFitContext(text, model)) {
      return fields->Fail("prompt", absl::StrCat("The prompt is longer than the context of ",
                                                 model.engine->max_model_len(), " tokens"));
    }
    prompt.ids = model.tokenizer->Encode(text, add_special_tokens);
    if (params->echo) prompt.echo_text = text;
  } else if (IsIdList(value)) {
    const int32_t vocab = model.config.vocab_size;
    for (const Json& item : value) {
      const int64_t id = *AsInt(item);
      if (id < 0 || id >= vocab)
        return fields->Fail("prompt", absl::StrCat("prompt ids must be in [0, ", vocab, ")"));
      prompt.ids.push_back(static_cast<int32_t>(id));
    }
  } else {
    return fields->Fail(
        "prompt", "prompt must be a string, a list of strings, a list of token ids or a list of such lists");
  }
  if (prompt.ids.empty()) return fields->Fail("prompt", "prompt must not be empty");
  params->prompts.push_back(std::move(prompt));
}

void ReadPrompts(FieldReader* fields, const ServedModel& model, const ApiLimits& limits,
                 GenerateParams* params) {
  const Json* prompt = fields->Find("prompt");
  if (prompt == nullptr) return fields->Fail("prompt", "prompt is missing");
  const bool special = fields->Bool("add_special_tokens").value_or(true);
  if (prompt->is_string() || IsIdList(*prompt)) return AddPrompt(fields, model, *prompt, special, params);
  if (!prompt->is_array() || prompt->empty()) {
    return fields->Fail("prompt", "prompt must be a non-empty string or list");
  }
  if (prompt->size() > static_cast<size_t>(limits.max_prompts) && !(*prompt)[0].is_number()) {
    return fields->Fail("prompt", absl::StrCat("prompt has more than ", limits.max_prompts, " entries"));
  }
  const bool texts = (*prompt)[0].is_string();
  for (const Json& item : *prompt) {
    if (texts != item.is_string()) return fields->Fail("prompt", "prompt must hold entries of one kind");
    AddPrompt(fields, model, item, special, params);
    if (!fields->ok()) return;
  }
}

void ReadLogprobs(FieldReader* fields, GenerateParams* params) {
  const std::optional<int64_t> logprobs = fields->StrictInt("logprobs", 0, kMaxLogprobs);
  const std::optional<int64_t> prompt_logprobs = fields->StrictInt("prompt_logprobs", 0, kMaxLogprobs);
  params->logprobs = logprobs.has_value();
  params->num_top_logprobs = static_cast<int32_t>(logprobs.value_or(0));
  params->sampling.num_logprobs = static_cast<int32_t>(logprobs.value_or(-1));
  if (params->stream && prompt_logprobs.value_or(0) > 0) {
    return fields->Fail("prompt_logprobs", "prompt_logprobs cannot be streamed");
  }
  params->sampling.num_prompt_logprobs =
      static_cast<int32_t>(params->stream ? -1 : prompt_logprobs.value_or(-1));
  if (params->echo && logprobs.has_value()) {
    params->sampling.num_prompt_logprobs =
        std::max(params->sampling.num_prompt_logprobs, params->sampling.num_logprobs);
  }
  params->prompt_logprobs = params->sampling.num_prompt_logprobs >= 0 && !params->stream;
}

}  // namespace

GenerateOrError ParseCompletionRequest(absl::string_view body, const ServedModel& model,
                                       const ApiLimits& limits) {
  absl::StatusOr<Json> json =
      ParseJsonObject(body, JsonLimits{limits.max_json_depth, limits.max_json_values});
  if (!json.ok()) return BadRequest("", json.status().message());
  return ParseCompletionFields(*json, model, limits, body);
}

GenerateOrError ParseCompletionFields(const Json& json, const ServedModel& model, const ApiLimits& limits,
                                      absl::string_view body) {
  FieldReader fields(json, CompletionFieldTable());
  if (std::optional<ApiError> error = CheckModel(&fields, model)) return *std::move(error);
  GenerateParams params;
  ReadCommonFields(&fields, model, limits, &params);
  ReadLogprobs(&fields, &params);
  const std::optional<int64_t> asked = fields.Int("max_tokens", params.echo ? 0 : 1);
  params.echo_only = asked == 0;
  if (fields.ok()) ReadPrompts(&fields, model, limits, &params);
  const size_t num_sequences = params.prompts.size() * static_cast<size_t>(params.num_candidates());
  if (fields.ok() && num_sequences > static_cast<size_t>(limits.max_sequences)) {
    const char* field = params.best_of > params.n ? "best_of" : "n";
    fields.Fail(field, absl::StrCat("prompts times ", field, " must be at most ", limits.max_sequences));
  }
  if (fields.ok())
    FitContext(&fields, model, std::max<int64_t>(1, asked.value_or(kDefaultMaxTokens)), &params);
  CheckPromptLogprobs(&fields, limits, params);
  ReadBeamSearch(&fields, model, limits, &params);
  params.grammar = ReadStructuredOutputs(&fields, body, model.gate);
  CheckGrammar(&fields, params);
  if (!fields.ok()) return fields.error();
  if (params.echo) {
    for (GenerateParams::Prompt& prompt : params.prompts) {
      if (prompt.echo_text.empty()) prompt.echo_text = model.tokenizer->Decode(prompt.ids, false);
    }
  }
  return params;
}

}  // namespace somnus
