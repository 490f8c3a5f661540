// /tokenize and /detokenize.
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/http/json_body.h"
#include "coordinator/openai/openai_request.h"
#include "coordinator/openai/request_fields.h"

namespace somnus {

using Json = nlohmann::json;

BodyOrError Tokenize(absl::string_view body, const ServedModel& model, const ApiLimits& limits) {
  absl::StatusOr<Json> json =
      ParseJsonObject(body, JsonLimits{limits.max_json_depth, limits.max_json_values});
  if (!json.ok()) return BadRequest("", json.status().message());
  FieldReader fields(*json, TokenizeFieldTable());
  if (std::optional<ApiError> error = CheckModel(&fields, model)) return *std::move(error);
  // When both are given, `prompt` wins unless `messages` is a list with messages.
  const Json* messages = fields.Find("messages");
  const bool chat = messages != nullptr &&
                    (fields.Find("prompt") == nullptr || (messages->is_array() && !messages->empty()));
  fields.CheckNulls();
  std::optional<std::string> text;
  std::vector<int32_t> turns;  // as of RenderedChat::ids
  if (chat) {
    if (fields.Find("chat_template") != nullptr)
      fields.Fail("chat_template", "chat_template is not supported");
    RenderedChat rendered = RenderChat(body, &fields, model, /*any_role=*/true);  // vLLM takes any role here
    text = std::move(rendered.text);
    turns = std::move(rendered.ids);
  } else {
    text = fields.String("prompt", std::numeric_limits<size_t>::max());
    if (!text.has_value()) fields.Fail("prompt", "prompt is missing");
  }
  // In the worst case each byte is a token; the number is about the bytes of the token's id, text and
  // separators.
  constexpr int64_t kTokenJsonBytes = 16;
  const int64_t most = limits.max_response_bytes / kTokenJsonBytes;
  if (text.has_value() && static_cast<int64_t>(text->size()) > most)
    fields.Fail(chat ? "messages" : "prompt", absl::StrCat("the text is longer than ", most, " bytes"));
  const bool special = fields.Bool("add_special_tokens").value_or(!chat);
  const bool strings = fields.Bool("return_token_strs").value_or(false);
  if (!fields.ok()) return fields.error();
  const std::vector<int32_t> ids = turns.empty() ? model.tokenizer->Encode(*text, special) : std::move(turns);
  std::string answer = absl::StrCat("{\"count\":", ids.size(),
                                    ",\"max_model_len\":", model.engine->max_model_len(), ",\"tokens\":[");
  for (size_t i = 0; i < ids.size(); ++i) absl::StrAppend(&answer, i == 0 ? "" : ",", ids[i]);
  answer += "],\"token_strs\":";
  if (!strings) return answer + "null}";
  for (size_t i = 0; i < ids.size(); ++i) {
    answer += i == 0 ? '[' : ',';
    AppendJsonString(model.tokenizer->TokenString(ids[i]), &answer);
  }
  return answer + (ids.empty() ? "[]}" : "]}");
}

BodyOrError Detokenize(absl::string_view body, const ServedModel& model, const ApiLimits& limits) {
  absl::StatusOr<Json> json =
      ParseJsonObject(body, JsonLimits{limits.max_json_depth, limits.max_json_values});
  if (!json.ok()) return BadRequest("", json.status().message());
  FieldReader fields(*json, DetokenizeFieldTable());
  if (std::optional<ApiError> error = CheckModel(&fields, model)) return *std::move(error);
  const auto ids = fields.TokenIds("tokens", model.config.vocab_size, std::numeric_limits<size_t>::max());
  if (!ids.has_value()) fields.Fail("tokens", "tokens is missing");
  if (!fields.ok()) return fields.error();
  constexpr int64_t kEscapedByteBytes = 6;
  int64_t bytes = 0;
  for (const int32_t id : *ids)
    bytes += kEscapedByteBytes * static_cast<int64_t>(model.tokenizer->TokenBytes(id).size());
  if (bytes > limits.max_response_bytes) {
    return BadRequest("tokens",
                      absl::StrCat("the text would take more than ", limits.max_response_bytes, " bytes"));
  }
  std::string answer = "{\"prompt\":";
  AppendJsonString(model.tokenizer->Decode(*ids, /*skip_special_tokens=*/false), &answer);
  return answer + "}";
}

}  // namespace somnus
