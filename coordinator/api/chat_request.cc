#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "coordinator/api/json_body.h"
#include "coordinator/api/openai_request.h"
#include "coordinator/api/request_fields.h"
#include "coordinator/tokenizer/chat_template.h"

namespace somnus {
namespace {

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;

constexpr int32_t kMaxTopLogprobs = 20;
constexpr size_t kMaxMessages = 16384;
constexpr size_t kMaxKeys = 64;  // of one object that reaches the template

// ordered_json looks keys up one by one, hence the bound.
bool CopyBounded(const Json& from, OrderedJson* to) {
  if (from.is_array()) {
    *to = OrderedJson::array();
    for (const Json& item : from) {
      to->emplace_back();
      if (!CopyBounded(item, &to->back())) return false;
    }
    return true;
  }
  if (!from.is_object()) {
    *to = OrderedJson(from);
    return true;
  }
  if (from.size() > kMaxKeys) return false;
  *to = OrderedJson::object();
  for (const auto& [key, value] : from.items()) {
    if (!CopyBounded(value, &(*to)[key])) return false;
  }
  return true;
}

// Content parts become one text, joined by newlines. False: a part that is no text.
bool JoinParts(const Json& parts, std::string* text) {
  std::vector<std::string> texts;
  for (const Json& part : parts) {
    if (part.is_string()) {
      texts.push_back(part.get<std::string>());
      continue;
    }
    if (!part.is_object() || !part.contains("type") || !part["type"].is_string()) return false;
    const std::string type = part["type"].get<std::string>();
    const char* key = type == "refusal" ? "refusal" : "text";
    if (type != "text" && type != "input_text" && type != "output_text" && type != "refusal") return false;
    if (!part.contains(key) || !part[key].is_string()) return false;
    texts.push_back(part[key].get<std::string>());
  }
  *text = absl::StrJoin(texts, "\n");
  return true;
}

// Why `message` is refused; empty: it is fine and was appended to `out`.
std::string AddMessage(const Json& message, OrderedJson* out) {
  if (!message.is_object()) return "every message must be an object";
  if (!message.contains("role") || !message["role"].is_string())
    return "every message needs a role that is a string";
  OrderedJson copy;
  const std::string role = message["role"].get<std::string>();
  copy["role"] = role;
  std::string text;
  if (const auto content = message.find("content"); content != message.end()) {
    if (content->is_string()) {
      text = content->get<std::string>();
    } else if (content->is_array()) {
      if (!JoinParts(*content, &text))
        return "content parts must be texts: {\"type\": \"text\", \"text\": ...}";
    } else if (!content->is_null() || role != "assistant") {
      return "content must be a string or a list of text parts";
    }
  }
  copy["content"] = text;
  for (const char* key : {"name", "tool_call_id", "reasoning_content", "tool_calls"}) {
    const auto it = message.find(key);
    if (it == message.end() || it->is_null()) continue;
    const bool fits = key == absl::string_view("tool_calls") ? it->is_array() : it->is_string();
    if (!fits || !CopyBounded(*it, &copy[key])) return absl::StrCat(key, " of a message has the wrong form");
  }
  out->push_back(std::move(copy));
  return "";
}

OrderedJson ReadMessages(FieldReader* fields) {
  OrderedJson out = OrderedJson::array();
  const Json* messages = fields->Find("messages");
  if (messages == nullptr) {
    fields->Fail("messages", "messages is missing");
    return out;
  }
  if (!messages->is_array() || messages->empty() || messages->size() > kMaxMessages) {
    fields->Fail("messages",
                 absl::StrCat("messages must be a non-empty list of at most ", kMaxMessages, " messages"));
    return out;
  }
  for (const Json& message : *messages) {
    if (const std::string problem = AddMessage(message, &out); !problem.empty()) {
      fields->Fail("messages", problem);
      return out;
    }
  }
  return out;
}

// Everything after the last message's text goes, so that the model goes on writing it.
void CutAfterFinalMessage(FieldReader* fields, const OrderedJson& messages, std::string* rendered) {
  const std::string content = messages.back()["content"].get<std::string>();
  const absl::string_view bare = absl::StripAsciiWhitespace(content);
  const size_t at = bare.empty() ? std::string::npos : rendered->rfind(std::string(bare));
  if (at == std::string::npos) {
    return fields->Fail("continue_final_message",
                        "the chat template does not write the last message as it is");
  }
  const std::string with_tail(absl::StripLeadingAsciiWhitespace(content));
  const bool keeps_tail = rendered->compare(at, with_tail.size(), with_tail) == 0;
  rendered->resize(at + (keeps_tail ? with_tail.size() : bare.size()));
}

void AddTemplateKwargs(FieldReader* fields, OrderedJson* context) {
  const Json* kwargs = fields->Find("chat_template_kwargs");
  if (kwargs == nullptr) return;
  if (!kwargs->is_object() || kwargs->size() > kMaxKeys) {
    return fields->Fail("chat_template_kwargs", "chat_template_kwargs must be a small object");
  }
  for (const auto& [key, value] : kwargs->items()) {
    if (value.is_structured() || context->contains(key) || key == "chat_template" || key == "tokenize" ||
        key == "tools") {
      return fields->Fail("chat_template_kwargs",
                          "chat_template_kwargs may set plain values of the template's own variables only");
    }
    (*context)[key] = OrderedJson(value);
  }
}

void ReadChatLogprobs(FieldReader* fields, GenerateParams* params) {
  const Json* given = fields->Find("logprobs");
  if (given != nullptr && !given->is_boolean())
    return fields->Fail("logprobs", "logprobs must be true or false");
  params->logprobs = given != nullptr && given->get<bool>();
  const std::optional<int64_t> top = fields->Int("top_logprobs", 0, kMaxTopLogprobs);
  if (top.value_or(0) > 0 && !params->logprobs)
    fields->Fail("top_logprobs", "top_logprobs needs logprobs to be true");
  params->num_top_logprobs = static_cast<int32_t>(top.value_or(0));
  params->sampling.num_logprobs = params->logprobs ? params->num_top_logprobs : -1;
  const std::optional<int64_t> prompt_logprobs = fields->Int("prompt_logprobs", 0, kMaxTopLogprobs);
  if (params->stream && prompt_logprobs.value_or(0) > 0) {
    return fields->Fail("prompt_logprobs", "prompt_logprobs cannot be streamed");
  }
  params->prompt_logprobs = prompt_logprobs.has_value() && !params->stream;
  params->sampling.num_prompt_logprobs =
      params->prompt_logprobs ? static_cast<int32_t>(*prompt_logprobs) : -1;
}

}  // namespace

std::string LastAssistantText(FieldReader* fields) {
  const OrderedJson messages = ReadMessages(fields);
  if (!fields->ok() || messages.back()["role"] != "assistant") return "";
  return messages.back()["content"].get<std::string>();
}

std::string RenderChat(FieldReader* fields, const ServedModel& model) {
  OrderedJson context;
  context["messages"] = ReadMessages(fields);
  const bool go_on = fields->Bool("continue_final_message").value_or(false);
  const std::optional<bool> add_prompt = fields->Bool("add_generation_prompt");
  if (go_on && add_prompt.value_or(false)) {
    fields->Fail("continue_final_message",
                 "continue_final_message and add_generation_prompt exclude each other");
  }
  context["add_generation_prompt"] = add_prompt.value_or(!go_on);
  const TokenizerData& data = model.tokenizer->data();
  context["bos_token"] = data.bos_token;
  context["eos_token"] = data.eos_token;
  context["unk_token"] = data.unk_token_text;
  context["pad_token"] = data.pad_token;
  AddTemplateKwargs(fields, &context);
  if (model.chat_template == nullptr)
    fields->Fail("messages", "the model has no chat template: use /v1/completions");
  if (!fields->ok()) return "";
  absl::StatusOr<std::string> rendered = model.chat_template->Render(context);
  if (!rendered.ok()) {
    fields->Fail("messages",
                 absl::StrCat("The chat template refused: ", CleanMessage(rendered.status().message())));
    return "";
  }
  if (go_on) CutAfterFinalMessage(fields, context["messages"], &*rendered);
  return *std::move(rendered);
}

GenerateOrError ParseChatRequest(absl::string_view body, const ServedModel& model, const ApiLimits& limits) {
  absl::StatusOr<Json> json = ParseJsonObject(body, JsonLimits{.max_depth = limits.max_json_depth});
  if (!json.ok()) return BadRequest("", json.status().message());
  FieldReader fields(*json);
  if (std::optional<ApiError> error = CheckModel(&fields, model)) return *std::move(error);
  GenerateParams params;
  params.chat = true;
  ReadCommonFields(&fields, model, limits, &params);
  ReadChatLogprobs(&fields, &params);
  const std::optional<int64_t> max_tokens = fields.Int("max_tokens", 1);
  const std::optional<int64_t> max_completion = fields.Int("max_completion_tokens", 1);
  const bool special = fields.Bool("add_special_tokens").value_or(false);
  if (!fields.ok()) return fields.error();

  const std::string text = RenderChat(&fields, model);
  if (!fields.ok()) return fields.error();
  if (!MayFitContext(text, model)) {
    return BadRequest("messages", absl::StrCat("The messages are longer than the context of ",
                                               model.engine->max_model_len(), " tokens"));
  }
  GenerateParams::Prompt prompt;
  prompt.ids = model.tokenizer->Encode(text, special);
  if (prompt.ids.empty()) return BadRequest("messages", "the messages make an empty prompt");
  params.prompts.push_back(std::move(prompt));
  FitContext(&fields, model, max_completion.has_value() ? max_completion : max_tokens, &params);
  if (params.echo) params.prompts[0].echo_text = LastAssistantText(&fields);
  if (!fields.ok()) return fields.error();
  return params;
}

}  // namespace somnus
