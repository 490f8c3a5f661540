#include "coordinator/responses/chat_translation.h"

#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "coordinator/openai/field_reader.h"
#include "coordinator/openai/request_fields.h"
#include "coordinator/responses/input_items.h"

namespace somnus {
namespace {

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;

constexpr size_t kMaxTextBytes = std::numeric_limits<size_t>::max();
// OpenAI's bounds of `metadata`.
constexpr size_t kMaxMetadata = 16, kMaxMetadataKeyBytes = 64, kMaxMetadataValueBytes = 512;

// Fields that the chat route has under the same name.
constexpr const char* kSameFields[] = {
    "model", "temperature", "top_p", "stream", "parallel_tool_calls", "user", "top_logprobs",
    // OpenAI does not have the rest.
    "top_k", "min_p", "seed", "stop", "include_stop_str_in_output", "stop_token_ids", "ignore_eos",
    "min_tokens", "presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias",
    "allowed_token_ids", "bad_words", "priority", "cache_salt", "chat_template_kwargs", "documents",
    "include_reasoning", "thinking_token_budget", "skip_special_tokens", "structured_outputs",
    "truncate_prompt_tokens", "truncation_side"};

// Fields of OpenAI that this server does not have.
constexpr const char* kRefusedFields[] = {"conversation", "prompt", "moderation"};

// Names of the chat route beside the names here.
constexpr std::pair<const char*, const char*> kOtherNames[] = {{"max_completion_tokens", "max_output_tokens"},
                                                               {"max_tokens", "max_output_tokens"},
                                                               {"response_format", "text.format"},
                                                               {"reasoning_effort", "reasoning.effort"},
                                                               {"messages", "input"}};

using enum FieldType;

constexpr FieldSpec kOwnFields[] = {
    {"input", kOther, "a text, or the items of a conversation",
     R"("anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "object"}}], "examples": ["abc"])",
     false, true},
    {"instructions", kString, "what goes before the conversation"},
    {"max_output_tokens", kInteger, "the most tokens of the response", R"("minimum": 1)"},
    {"max_tool_calls", kInteger, "has no effect: this server calls no tools of its own", R"("minimum": 1)"},
    {"tools", kOther, "functions that the model may call",
     R"("type": "array", "items": {"type": "object"}, "examples": [[{"type": "function", "name": "f"}]])"},
    {"tool_choice", kOther, "whether tools are called",
     R"("anyOf": [{"enum": ["none", "auto", "required"]}, {"type": "object"}], "examples": ["none"])"},
    {"text", kOther, "the form of the text",
     R"("type": "object", "examples": [{"format": {"type": "text"}}])"},
    {"reasoning", kOther, "effort and summary", R"("type": "object", "examples": [{"effort": "low"}])"},
    {"include", kStrings, "what the response has besides",
     R"("examples": [["message.output_text.logprobs"]])"},
    {"store", kBoolean, "the response is kept for later requests"},
    {"previous_response_id", kString, "the response whose conversation goes on", R"("minLength": 1)"},
    {"metadata", kOther, "is in the response again",
     R"("type": "object", "additionalProperties": {"type": "string"}, "examples": [{"a": "b"}])"},
    {"prompt_cache_key", kString, "has no effect"},
    {"safety_identifier", kString, "has no effect"},
    {"service_tier", kString, "has no effect"},
    {"stream_options", kOther, "has no effect", R"("type": "object", "examples": [{}])"},
    {"background", kBoolean, "must be false"},
    {"truncation", kString, "must be disabled", R"("enum": ["disabled"])"},
    {"context_management", kOther, "must be empty", R"("type": "array", "maxItems": 0, "examples": [[]])"},
    // Of OpenAI's server, and of the chat route.
    {"conversation", kOther, ""},
    {"prompt", kOther, ""},
    {"moderation", kOther, ""},
    {"max_completion_tokens", kOther, ""},
    {"max_tokens", kOther, ""},
    {"response_format", kOther, ""},
    {"reasoning_effort", kOther, ""},
    {"messages", kOther, ""},
};

constexpr char kChoices[] =
    "tool_choice must be \"none\", \"auto\", \"required\", {\"type\": \"function\", \"name\": ...} or "
    "{\"type\": \"allowed_tools\", \"mode\": ..., \"tools\": [...]}";

// Appends `"name":value` of each member.
void AppendMembers(const OrderedJson& object, std::string* out) {
  const std::string text = object.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
  if (text.size() > 2) absl::StrAppend(out, out->empty() ? "" : ",", text.substr(1, text.size() - 2));
}

// Whether every object of `in_order` has the keys of `value`, which was parsed from the same text.
bool HasAllKeys(const OrderedJson& in_order, const Json& value) {
  if (!value.is_structured()) return true;
  if (in_order.size() != value.size()) return false;
  if (value.is_array()) {
    for (size_t i = 0; i < value.size(); ++i) {
      if (!HasAllKeys(in_order[i], value[i])) return false;
    }
    return true;
  }
  for (const auto& [key, member] : in_order.items()) {
    if (!HasAllKeys(member, value.at(key))) return false;
  }
  return true;
}

bool IsStringOrNull(const Json& value) { return value.is_null() || value.is_string(); }

class RequestReader {
 public:
  RequestReader(const Json& body, const OrderedJson& in_order, bool can_store)
      : fields_(body, ResponsesFieldTable()), in_order_(in_order), can_store_(can_store) {}

  ResponsesRequestOrError Read() {
    RefuseFields();
    ReadInputAndInstructions();
    for (const char* name : kSameFields) {
      if (fields_.Find(name) != nullptr) chat_[name] = in_order_.at(name);
    }
    ReadLength();
    ReadTools();
    ReadToolChoice();
    ReadText();
    ReadReasoning();
    ReadInclude();
    ReadStoring();
    ReadEchoedAlone();
    if (!fields_.ok()) return fields_.error();
    AppendMembers(chat_, &request_.chat_fields);
    AppendMembers(echo_, &request_.echo);
    return std::move(request_);
  }

 private:
  void Fail(const std::string& param, absl::string_view problem) {
    fields_.Fail(param, absl::StrCat(param, " ", problem));
  }
  // The member of an object within a field; null: not given.
  static Json Inner(const Json& object, const char* name) { return object.value(name, Json()); }

  void RefuseFields() {
    for (const char* name : kRefusedFields) {
      if (fields_.Find(name) != nullptr) Fail(name, "is not supported");
    }
    if (fields_.Bool("background").value_or(false))
      Fail("background", "is not supported: a response is made while the client waits");
    const std::optional<std::string> truncation = fields_.String("truncation", kMaxTextBytes);
    if (truncation.value_or("disabled") != "disabled")
      Fail("truncation", "must be disabled: items that do not fit the context are never left out");
    const Json* context = fields_.Find("context_management");
    if (context != nullptr && !(context->is_array() && context->empty()))
      Fail("context_management", "is not supported");
    RefuseOtherServersForms(&fields_);
    // Fields of the chat route that, if ignored, would give a text of a wrong kind or length.
    for (const auto& [chat_name, name] : kOtherNames) {
      if (fields_.Find(chat_name) != nullptr)
        Fail(chat_name, absl::StrCat("is of /v1/chat/completions: here the name is ", name));
    }
  }

  void ReadInputAndInstructions() {
    if (fields_.Find("input") == nullptr) return fields_.Fail("input", "input is missing");
    OrderedJson messages = OrderedJson::array();
    if (std::optional<ApiError> error = ReadInput(in_order_.at("input"), &messages))
      return fields_.Fail(*std::move(error));
    AppendMessages(messages, &request_.messages);
    const std::optional<std::string> instructions = fields_.String("instructions", kMaxTextBytes);
    echo_["instructions"] = instructions.has_value() ? OrderedJson(*instructions) : OrderedJson();
    // The chat route joins a developer's and system messages for templates that know no developer.
    if (!instructions.has_value()) return;
    const OrderedJson message = {{"role", "developer"}, {"content", *instructions}};
    AppendMessages(OrderedJson::array({message}), &request_.instructions);
  }

  void ReadLength() {
    const std::optional<int64_t> length = fields_.Int("max_output_tokens", 1);
    if (length.has_value()) chat_["max_completion_tokens"] = *length;
    echo_["max_output_tokens"] = length.has_value() ? OrderedJson(*length) : OrderedJson();
    // This server calls no tools of its own, so that the number is kept in any case.
    const std::optional<int64_t> calls = fields_.Int("max_tool_calls", 1);
    echo_["max_tool_calls"] = calls.has_value() ? OrderedJson(*calls) : OrderedJson();
  }

  void ReadTools() {
    echo_["tools"] = OrderedJson::array();
    echo_["parallel_tool_calls"] = fields_.Bool("parallel_tool_calls").value_or(true);
    const Json* tools = fields_.Find("tools");
    if (tools == nullptr) return;
    if (!tools->is_array()) return Fail("tools", "must be a list");
    OrderedJson list = OrderedJson::array();
    for (size_t i = 0; i < tools->size() && fields_.ok(); ++i)
      ReadTool(absl::StrCat("tools[", i, "]"), (*tools)[i], in_order_.at("tools")[i], &list);
    if (!list.empty()) chat_["tools"] = std::move(list);
  }

  // Unlike OpenAI's API, a tool that does not say is not strict: only few schemas can be enforced exactly
  // without a word of the client.
  void ReadTool(const std::string& param, const Json& tool, const OrderedJson& in_order, OrderedJson* list) {
    if (!tool.is_object()) return Fail(param, "must be an object");
    if (Inner(tool, "type") != "function")
      return Fail(absl::StrCat(param, ".type"), "must be function: this server calls no tools of its own");
    const Json name = Inner(tool, "name"), parameters = Inner(tool, "parameters");
    if (!name.is_string() || name.get_ref<const std::string&>().empty())
      return Fail(absl::StrCat(param, ".name"), "must be a string that is not empty");
    if (!IsStringOrNull(Inner(tool, "description")))
      return Fail(absl::StrCat(param, ".description"), "must be a string");
    if (!parameters.is_null() && !parameters.is_object())
      return Fail(absl::StrCat(param, ".parameters"), "must be a JSON schema, which is an object");
    const Json strict = Inner(tool, "strict");
    if (!strict.is_null() && !strict.is_boolean())
      return Fail(absl::StrCat(param, ".strict"), "must be true or false");
    OrderedJson function = {{"name", name}};
    for (const char* member : {"description", "parameters"}) {
      if (!Inner(tool, member).is_null()) function[member] = in_order.at(member);
    }
    function["strict"] = strict.is_boolean() && strict.get<bool>();
    OrderedJson echo = {{"type", "function"}};
    echo.update(function);
    if (!echo.contains("parameters")) echo["parameters"] = nullptr;
    echo_["tools"].push_back(std::move(echo));
    list->push_back({{"type", "function"}, {"function", std::move(function)}});
  }

  void ReadToolChoice() {
    echo_["tool_choice"] = "auto";
    const Json* choice = fields_.Find("tool_choice");
    if (choice == nullptr) return;
    echo_["tool_choice"] = in_order_.at("tool_choice");
    if (*choice == "none" || *choice == "auto") {
      if (chat_.contains("tools")) chat_["tool_choice"] = *choice;
    } else if (*choice == "required") {
      chat_["tool_choice"] = *choice;
    } else if (choice->is_object() && Inner(*choice, "type") == "function" &&
               Inner(*choice, "name").is_string()) {
      chat_["tool_choice"] = {{"type", "function"}, {"function", {{"name", Inner(*choice, "name")}}}};
    } else if (choice->is_object() && Inner(*choice, "type") == "allowed_tools" &&
               Inner(*choice, "tools").is_array()) {
      ReadAllowedTools(*choice);
    } else {
      fields_.Fail("tool_choice", kChoices);
    }
  }

  // The chat route says whether the names are those of tools.
  void ReadAllowedTools(const Json& choice) {
    OrderedJson tools = OrderedJson::array();
    for (const Json& tool : Inner(choice, "tools")) {
      if (!tool.is_object() || Inner(tool, "type") != "function" || !Inner(tool, "name").is_string())
        return Fail("tool_choice.tools", "must hold {\"type\": \"function\", \"name\": ...}");
      tools.push_back({{"type", "function"}, {"function", {{"name", Inner(tool, "name")}}}});
    }
    const Json mode = Inner(choice, "mode");
    if (mode != "auto" && mode != "required") return Fail("tool_choice.mode", "must be auto or required");
    chat_["tool_choice"] = {{"type", "allowed_tools"},
                            {"allowed_tools", {{"mode", mode}, {"tools", std::move(tools)}}}};
  }

  void ReadText() {
    echo_["text"] = {{"format", {{"type", "text"}}}};
    const Json* text = fields_.Find("text");
    if (text == nullptr) return;
    if (!text->is_object()) return Fail("text", "must be an object");
    const Json verbosity = Inner(*text, "verbosity");
    if (!verbosity.is_null() && verbosity != "low" && verbosity != "medium" && verbosity != "high")
      return Fail("text.verbosity", "must be low, medium or high");
    if (!verbosity.is_null()) echo_["text"]["verbosity"] = verbosity;
    if (const Json format = Inner(*text, "format"); !format.is_null()) {
      ReadFormat(format, in_order_.at("text").at("format"));
    }
  }

  void ReadFormat(const Json& format, const OrderedJson& in_order) {
    const Json type = format.is_object() ? Inner(format, "type") : Json();
    if (type == "json_object") {
      chat_["response_format"] = {{"type", "json_object"}};
    } else if (type == "json_schema") {
      if (!Inner(format, "schema").is_object())
        return Fail("text.format.schema", "must be a JSON schema, which is an object");
      if (!Inner(format, "name").is_string()) return Fail("text.format.name", "must be a string");
      chat_["response_format"] = {
          {"type", "json_schema"},
          {"json_schema", {{"name", in_order.at("name")}, {"schema", in_order.at("schema")}}}};
    } else if (type != "text") {
      return Fail("text.format.type", "must be text, json_object or json_schema");
    }
    echo_["text"]["format"] = in_order;
  }

  // There are no summaries of reasoning: the reasoning itself is in the response.
  void ReadReasoning() {
    echo_["reasoning"] = {{"effort", nullptr}, {"summary", nullptr}};
    const Json* reasoning = fields_.Find("reasoning");
    if (reasoning == nullptr) return;
    if (!reasoning->is_object()) return Fail("reasoning", "must be an object");
    const Json effort = Inner(*reasoning, "effort"), summary = Inner(*reasoning, "summary");
    if (!IsStringOrNull(effort)) return Fail("reasoning.effort", "must be a string");
    if (!IsStringOrNull(summary)) return Fail("reasoning.summary", "must be a string");
    if (!effort.is_null()) chat_["reasoning_effort"] = effort;
    echo_["reasoning"] = {{"effort", effort}, {"summary", summary}};
  }

  void ReadInclude() {
    const int64_t top = fields_.StrictInt("top_logprobs", 0, std::numeric_limits<int64_t>::max()).value_or(0);
    echo_["top_logprobs"] = top;
    bool logprobs = top > 0;
    if (const auto include = fields_.Strings("include", false, /*max_count=*/64, /*max_bytes=*/256)) {
      for (const std::string& name : *include) {
        if (name == "message.output_text.logprobs") {
          logprobs = true;
        } else if (name != "reasoning.encrypted_content") {  // the reasoning is there in plain text
          Fail("include", "may have message.output_text.logprobs and reasoning.encrypted_content alone");
        }
      }
    }
    if (logprobs) chat_["logprobs"] = true;
  }

  void ReadStoring() {
    const std::optional<bool> store = fields_.Bool("store");
    if (store.value_or(false) && !can_store_)
      Fail("store", "must be false: this server keeps no responses (--max-stored-responses=0)");
    request_.store = store.value_or(can_store_);
    echo_["store"] = request_.store;
    const std::optional<std::string> previous = fields_.String("previous_response_id", kMaxTextBytes);
    if (previous.has_value() && previous->empty()) Fail("previous_response_id", "must not be empty");
    request_.previous_id = previous.value_or("");
    echo_["previous_response_id"] = previous.has_value() ? OrderedJson(*previous) : OrderedJson();
  }

  void ReadMetadata() {
    echo_["metadata"] = OrderedJson::object();
    const Json* metadata = fields_.Find("metadata");
    if (metadata == nullptr) return;
    if (!metadata->is_object() || metadata->size() > kMaxMetadata)
      return Fail("metadata", absl::StrCat("must be an object of at most ", kMaxMetadata, " strings"));
    for (const auto& [key, value] : metadata->items()) {
      if (!value.is_string() || key.size() > kMaxMetadataKeyBytes ||
          value.get_ref<const std::string&>().size() > kMaxMetadataValueBytes)
        return Fail("metadata", absl::StrCat("must have keys of at most ", kMaxMetadataKeyBytes,
                                             " bytes, and strings of at most ", kMaxMetadataValueBytes));
    }
    echo_["metadata"] = in_order_.at("metadata");
  }

  // Fields that change nothing here.
  void ReadEchoedAlone() {
    ReadMetadata();
    for (const char* name : {"user", "prompt_cache_key", "safety_identifier"}) {
      const std::optional<std::string> value = fields_.String(name, kMaxTextBytes);
      echo_[name] = value.has_value() ? OrderedJson(*value) : OrderedJson();
    }
    fields_.String("service_tier", kMaxTextBytes);
    const Json* options = fields_.Find("stream_options");
    if (options != nullptr && !options->is_object()) Fail("stream_options", "must be an object");
    echo_["service_tier"] = "default";
    echo_["background"] = false;
    echo_["truncation"] = "disabled";
  }

  FieldReader fields_;
  const OrderedJson& in_order_;
  const bool can_store_;
  OrderedJson chat_ = OrderedJson::object();
  OrderedJson echo_ = OrderedJson::object();
  ResponsesRequest request_;
};

}  // namespace

const FieldTable& ResponsesFieldTable() {
  static const auto* const table =
      new FieldTable({SameAsChat(kSameFields), SameAsChat(kOtherServersForms), kOwnFields});
  return *table;
}

ResponsesRequestOrError ReadResponsesRequest(absl::string_view body, const JsonLimits& limits, bool can_store,
                                             int32_t max_keys) {
  const absl::StatusOr<Json> parsed = ParseJsonObject(body, limits);
  if (!parsed.ok()) return BadRequest("", parsed.status().message());
  const OrderedJson in_order = ParseInOrder(body, {}, static_cast<size_t>(max_keys));
  if (!HasAllKeys(in_order, *parsed))
    return BadRequest("", absl::StrCat("The body has an object with more than ", max_keys, " keys"));
  return RequestReader(*parsed, in_order, can_store).Read();
}

std::string ChatBody(const ResponsesRequest& request, const Conversation& before) {
  std::string body = "{\"messages\":[";
  const char* comma = "";
  const auto add = [&](absl::string_view messages) {
    if (messages.empty()) return;
    absl::StrAppend(&body, comma, messages);
    comma = ",";
  };
  add(request.instructions);
  for (const auto& turn : before) add(*turn);
  add(request.messages);
  absl::StrAppend(&body, "]", request.chat_fields.empty() ? "" : ",", request.chat_fields, "}");
  return body;
}

ApiError InResponsesNames(ApiError error) {
  // A tool's function has its members beside `type` here.
  constexpr absl::string_view kFunction = "/function/";
  const size_t function = absl::string_view(error.param).find(kFunction);
  if (absl::StartsWith(error.param, "/tools/") && function != std::string::npos)
    error.param.replace(function, kFunction.size(), "/");
  for (const auto& [chat_name, name] : kOtherNames) {
    if (error.param != chat_name) continue;
    error.param = name;
    // "messages" is a word of many sentences, and stays.
    if (error.param != "input") error.message = absl::StrReplaceAll(error.message, {{chat_name, name}});
    break;
  }
  return error;
}

}  // namespace somnus
