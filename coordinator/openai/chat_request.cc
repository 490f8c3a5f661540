// Reads the fields of a chat request; chat_messages.cc renders the messages to a prompt.
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "coordinator/http/json_body.h"
#include "coordinator/openai/answer_fields.h"
#include "coordinator/openai/legacy_functions.h"
#include "coordinator/openai/openai_request.h"
#include "coordinator/openai/request_fields.h"

namespace somnus {
namespace {

using Json = nlohmann::json;

constexpr int32_t kMaxTopLogprobs = 20;

void ReadChatLogprobs(FieldReader* fields, GenerateParams* params) {
  params->logprobs = fields->Bool("logprobs").value_or(false);
  const std::optional<int64_t> top = fields->StrictInt("top_logprobs", 0, kMaxTopLogprobs);
  if (top.value_or(0) > 0 && !params->logprobs)
    fields->Fail("top_logprobs", "top_logprobs needs logprobs to be true");
  params->num_top_logprobs = static_cast<int32_t>(top.value_or(0));
  params->sampling.num_logprobs = params->logprobs ? params->num_top_logprobs : -1;
  const std::optional<int64_t> prompt_logprobs = fields->StrictInt("prompt_logprobs", 0, kMaxTopLogprobs);
  if (params->stream && prompt_logprobs.value_or(0) > 0) {
    return fields->Fail("prompt_logprobs", "prompt_logprobs cannot be streamed");
  }
  params->prompt_logprobs = prompt_logprobs.has_value() && !params->stream;
  params->sampling.num_prompt_logprobs =
      params->prompt_logprobs ? static_cast<int32_t>(*prompt_logprobs) : -1;
}

// `json`: the parsed `body`. `legacy_functions`: as AnswerFormat says.
GenerateOrError ParseChat(const Json& json, absl::string_view body, const ServedModel& model,
                          const ApiLimits& limits, bool generation_prompt, bool legacy_functions) {
  FieldReader fields(json, ChatFieldTable());
  if (std::optional<ApiError> error = CheckModel(&fields, model)) return *std::move(error);
  GenerateParams params;
  params.chat = true;
  ReadCommonFields(&fields, model, limits, &params);
  ReadChatLogprobs(&fields, &params);
  // max_completion_tokens, the newer name, wins; then max_tokens only has to be a number.
  const bool newer = fields.Find("max_completion_tokens") != nullptr;
  const char* length_field = newer ? "max_completion_tokens" : "max_tokens";
  if (newer) fields.Int("max_tokens");
  const std::optional<int64_t> max_tokens = fields.Int(length_field, 1);
  const bool special = fields.Bool("add_special_tokens").value_or(false);
  params.return_prompt_text = fields.Bool("return_prompt_text").value_or(false);
  if (!fields.ok()) return fields.error();

  RenderedChat chat = RenderChat(body, &fields, model, /*any_role=*/false, generation_prompt);
  if (!fields.ok()) return fields.error();
  if (!MayFitContext(chat.text, model)) {
    return BadRequest("messages", absl::StrCat("The messages are longer than the context of ",
                                               model.engine->max_model_len(), " tokens"));
  }
  GenerateParams::Prompt prompt;
  prompt.ids = chat.ids.empty() ? model.tokenizer->Encode(chat.text, special) : std::move(chat.ids);
  if (prompt.ids.empty()) return BadRequest("messages", "the messages make an empty prompt");
  params.prompts.push_back(std::move(prompt));
  FitContext(&fields, model, max_tokens, &params, length_field);
  CheckPromptLogprobs(&fields, limits, params);
  ReadBeamSearch(&fields, model, limits, &params);
  const ToolChoice choice = ReadToolChoice(&fields, model, chat);
  ReadAnswerFormat(&fields, model, chat, choice, legacy_functions, &params);
  ReadAnswerGrammar(&fields, body, model, chat, choice, &params);
  if (!fields.ok()) return fields.error();
  params.prompts[0].echo_text = params.echo ? std::move(chat.echo_text) : "";
  params.role = std::move(chat.role);
  if (params.return_prompt_text) params.prompt_text = std::move(chat.text);
  return params;
}

}  // namespace

GenerateOrError ParseChatRequest(absl::string_view body, const ServedModel& model, const ApiLimits& limits,
                                 bool generation_prompt) {
  const JsonLimits bounds{limits.max_json_depth, limits.max_json_values};
  const absl::StatusOr<Json> json = ParseJsonObject(body, bounds);
  if (!json.ok()) return BadRequest("", json.status().message());
  if (!HasLegacyFunctions(*json))
    return ParseChat(*json, body, model, limits, generation_prompt, /*legacy_functions=*/false);
  // One key more than the gate takes, so that the gate refuses a schema that was cut.
  const BodyOrError rewritten =
      LegacyFunctionsToTools(*json, body, static_cast<size_t>(model.gate.max_keys) + 1);
  if (const auto* error = std::get_if<ApiError>(&rewritten)) return *error;
  const std::string& tools = std::get<std::string>(rewritten);
  const absl::StatusOr<Json> again = ParseJsonObject(tools, bounds);
  if (!again.ok()) return BadRequest("functions", again.status().message());
  GenerateOrError parsed =
      ParseChat(*again, tools, model, limits, generation_prompt, /*legacy_functions=*/true);
  if (auto* error = std::get_if<ApiError>(&parsed)) return InLegacyNames(std::move(*error));
  return parsed;
}

}  // namespace somnus
