#include "coordinator/messages/messages_request.h"

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "coordinator/http/json_body.h"
#include "coordinator/messages/chat_body.h"
#include "coordinator/messages/messages_writer.h"
#include "coordinator/openai/request_fields.h"

namespace somnus {
namespace {

using Json = nlohmann::json;

ChatBodyOptions OptionsOf(const ServedModel& model, bool counts_only) {
  return {.can_reason = model.turn_format.reasoning != nullptr,
          .context = model.engine->max_model_len(),
          .counts_only = counts_only,
          .max_schema_keys = model.gate.max_keys};
}

}  // namespace

GenerateOrError ParseMessagesRequest(absl::string_view body, const ServedModel& model,
                                     const ApiLimits& limits) {
  BodyOrError chat = ToChatBody(body, limits, OptionsOf(model, /*counts_only=*/false));
  if (auto* error = std::get_if<ApiError>(&chat)) return std::move(*error);
  GenerateOrError parsed = ParseChatRequest(std::get<std::string>(chat), model, limits);
  if (auto* error = std::get_if<ApiError>(&parsed)) return InMessagesTerms(std::move(*error));
  auto& params = std::get<GenerateParams>(parsed);
  params.response_id = NewResponseId(kMessageIdPrefix);
  params.make_writer = &MakeMessagesWriter;
  if (params.grammar.has_value()) params.grammar->field = std::string(MessagesField(params.grammar->field));
  return parsed;
}

BodyOrError CountMessageTokens(absl::string_view body, const ServedModel& model, const ApiLimits& limits) {
  BodyOrError chat = ToChatBody(body, limits, OptionsOf(model, /*counts_only=*/true));
  if (std::holds_alternative<ApiError>(chat)) return chat;
  const std::string& text = std::get<std::string>(chat);
  const absl::StatusOr<Json> json =
      ParseJsonObject(text, JsonLimits{limits.max_json_depth, limits.max_json_values});
  if (!json.ok()) return BadRequest("", json.status().message());
  FieldReader fields(*json);
  if (std::optional<ApiError> error = CheckModel(&fields, model)) return *std::move(error);
  const RenderedChat rendered = RenderChat(text, &fields, model, /*any_role=*/false);
  if (!fields.ok()) return InMessagesTerms(fields.error());
  // A template may write a text several times. A prompt that is longer than any body is not counted.
  if (static_cast<int64_t>(rendered.text.size()) > limits.max_body_bytes)
    return BadRequest("messages",
                      absl::StrCat("the prompt is longer than ", limits.max_body_bytes, " bytes"));
  const std::vector<int32_t> ids = model.tokenizer->Encode(rendered.text, /*add_special_tokens=*/false);
  return absl::StrCat("{\"input_tokens\":", ids.size(), "}");
}

}  // namespace somnus
