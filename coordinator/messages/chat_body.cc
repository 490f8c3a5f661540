#include "coordinator/messages/chat_body.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/types/span.h"
#include "coordinator/http/json_body.h"
#include "coordinator/messages/conversation.h"
#include "coordinator/openai/field_reader.h"
#include "coordinator/openai/request_fields.h"

namespace somnus {
namespace {

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;

// The members that are kept of an object for the template: one more than the chat route takes, so that the
// chat route refuses an object that was cut to this number.
constexpr size_t kMaxKeys = 65;

using enum FieldType;

constexpr const char* kConversationSame[] = {"model", "chat_template_kwargs"};
// Anthropic does not have the fields after `stream`, nor the lists.
constexpr const char* kGenerationSame[] = {
    "temperature",        "top_p",      "top_k",     "stream",           "seed",
    "priority",           "cache_salt", "min_p",     "presence_penalty", "frequency_penalty",
    "repetition_penalty", "min_tokens", "ignore_eos"};
constexpr const char* kGenerationLists[] = {"stop_token_ids", "allowed_token_ids", "bad_words", "logit_bias"};
// The chat route's names of the form, which is `output_config.format` here.
constexpr const char* kChatForms[] = {"response_format", "structured_outputs"};

constexpr FieldSpec kConversationFields[] = {
    {"messages", kOther, "the conversation",
     R"("type": "array", "minItems": 1, "items": {"type": "object", "properties": {"role": {"enum": ["user", )"
     R"("assistant", "system"]}}, "required": ["role", "content"]}, )"
     R"("examples": [[{"role": "user", "content": "abc"}]])",
     false, true},
    {"system", kOther, "what goes before the conversation",
     R"("anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "object"}}], "examples": ["abc"])"},
    {"tools", kOther, "tools that the model may call",
     R"("type": "array", "items": {"type": "object"}, )"
     R"("examples": [[{"name": "f", "input_schema": {"type": "object"}}]])"},
    {"tool_choice", kOther, "whether tools are called",
     R"("type": "object", "examples": [{"type": "auto"}])"},
    {"thinking", kOther, "whether the model reasons",
     R"("type": "object", "examples": [{"type": "disabled"}])"},
    {"output_config", kOther, "effort, and the form of the text", R"("type": "object", "examples": [{}])"},
    {"mcp_servers", kOther, "must be empty", R"("type": "array", "maxItems": 0, "examples": [[]])"},
};

constexpr FieldSpec kGenerationFields[] = {
    {"max_tokens", kInteger, "the most tokens of the answer", R"("minimum": 1, "examples": [4])", false,
     true},
    {"stop_sequences", kStrings, "texts that end the answer"},
    {"output_format", kOther, "output_config.format, by its older name",
     R"("type": "object", "properties": {"type": {"const": "json_schema"}, "schema": {}}, )"
     R"("required": ["type", "schema"], "examples": [{"type": "json_schema", "schema": {}}])"},
    {"response_format", kOther, ""},
    {"structured_outputs", kOther, ""},
    {"metadata", kOther, "the user_id", R"("type": "object", "examples": [{"user_id": "u"}])"},
};

// The member of an object, or null. The result may be a part of `object`.
const OrderedJson& MemberOf(const OrderedJson& object, const char* key) {
  static const auto& kNull = *new OrderedJson();
  if (!object.is_object()) return kNull;
  const auto it = object.find(key);
  return it == object.end() ? kNull : *it;
}

class ChatBodyMaker {
 public:
  ChatBodyMaker(absl::string_view body, const Json& json, const ApiLimits& limits,
                const ChatBodyOptions& options)
      : body_(body),
        limits_(limits),
        options_(options),
        fields_(json, options.counts_only ? CountTokensFieldTable() : MessagesFieldTable()),
        ordered_(ParseInOrder(body, {"system", "messages", "tools", "chat_template_kwargs"}, kMaxKeys)) {}

  BodyOrError Make() {
    PassOn({"model"});
    ReadConversationFields();
    ReadTools();
    ReadThinking();
    ReadOutputConfig();
    if (!options_.counts_only) ReadGeneration();
    if (!fields_.ok()) return fields_.error();
    return chat_.dump();
  }

 private:
  void Fail(absl::string_view field, absl::string_view problem) { fields_.Fail(field, problem); }

  // Copies fields that mean the same on both routes.
  void PassOn(absl::Span<const char* const> names, bool single = true) {
    for (const char* name : names) {
      const Json* value = fields_.Find(name);
      if (value == nullptr) continue;
      if (single && value->is_structured()) return Fail(name, absl::StrCat(name, " must be a single value"));
      chat_[name] = *value;
    }
  }
  // The object at `name`; an empty object where the field is not given or is none.
  Json Object(const char* name) {
    const Json* value = fields_.Find(name);
    if (value == nullptr) return Json::object();
    if (value->is_object()) return *value;
    Fail(name, absl::StrCat(name, " must be an object"));
    return Json::object();
  }

  void ReadConversationFields() {
    Conversation conversation =
        ReadConversation(MemberOf(ordered_, "system"), MemberOf(ordered_, "messages"), &fields_);
    chat_["messages"] = std::move(conversation.messages);
    if (!conversation.continues) return;
    chat_["continue_final_message"] = true;
    chat_["add_generation_prompt"] = false;
  }

  void ReadTools() {
    const OrderedJson& tools = MemberOf(ordered_, "tools");
    if (!tools.is_null() && !tools.is_array()) return Fail("tools", "tools must be a list");
    for (size_t i = 0; i < tools.size() && fields_.ok(); ++i)
      ReadTool(tools[i], absl::StrCat("tools[", i, "]"));
    if (fields_.ok()) ReadToolChoice();
    const Json* servers = fields_.Find("mcp_servers");
    if (servers != nullptr && *servers != Json::array())
      Fail("mcp_servers", "mcp_servers is not supported: this server calls no tools itself");
  }

  // Tools with a type are Anthropic's own, run by that server or known to those models without a schema.
  void ReadTool(const OrderedJson& tool, const std::string& path) {
    if (!tool.is_object()) return Fail(path, "must be an object");
    const OrderedJson& type = MemberOf(tool, "type");
    const OrderedJson& schema = MemberOf(tool, "input_schema");
    if (!type.is_null() && type != "custom")
      return Fail(absl::StrCat(path, ".type"), "only tools with an input_schema (type custom) are supported");
    if (!MemberOf(tool, "name").is_string()) return Fail(absl::StrCat(path, ".name"), "must be a string");
    if (!schema.is_object()) return Fail(absl::StrCat(path, ".input_schema"), "must be an object");
    OrderedJson function = {{"name", tool["name"]}};
    for (const char* name : {"description", "strict"}) {
      if (tool.contains(name)) function[name] = tool[name];
    }
    function["parameters"] = schema;
    chat_["tools"].push_back({{"type", "function"}, {"function", std::move(function)}});
  }

  void ReadToolChoice() {
    const Json choice = Object("tool_choice");
    if (choice.empty()) return;
    const Json type = choice.value("type", Json());
    const bool forces = type == "any" || type == "tool";
    if (!forces && type != "auto" && type != "none")
      return Fail("tool_choice", "tool_choice.type must be auto, any, tool or none");
    if (!chat_.contains("tools")) {
      if (forces) Fail("tool_choice", "tool_choice needs tools");
      return;
    }
    const Json name = choice.value("name", Json());
    if (type == "tool" && !name.is_string()) return Fail("tool_choice.name", "must be a string");
    forces_call_ = forces;
    if (type == "tool") {
      chat_["tool_choice"] = {{"type", "function"}, {"function", {{"name", name}}}};
    } else {
      chat_["tool_choice"] = type == "any" ? "required" : type.get<std::string>();
    }
    FieldReader inner(choice);
    if (inner.Bool("disable_parallel_tool_use").value_or(false)) chat_["parallel_tool_calls"] = false;
    if (!inner.ok()) Fail("tool_choice.disable_parallel_tool_use", "must be true or false");
  }

  // Without the field there is no thinking, as with Anthropic. Templates have two names for the switch.
  void ReadThinking() {
    const Json thinking = Object("thinking");
    const Json type = thinking.empty() ? Json("disabled") : thinking.value("type", Json());
    const bool on = type == "enabled" || type == "adaptive";
    if (!on && type != "disabled")
      return Fail("thinking", "thinking.type must be enabled, adaptive or disabled");
    OrderedJson kwargs = MemberOf(ordered_, "chat_template_kwargs");
    if (kwargs.is_null()) kwargs = OrderedJson::object();
    for (const char* name : {"enable_thinking", "thinking"}) {
      if (kwargs.is_object() && !kwargs.contains(name)) kwargs[name] = on;
    }
    chat_["chat_template_kwargs"] = std::move(kwargs);
    if (options_.counts_only) return;
    chat_["include_reasoning"] = on;
    FieldReader inner(thinking);
    const std::optional<int64_t> budget = inner.Int("budget_tokens", 1);
    if (!inner.ok()) return Fail("thinking.budget_tokens", inner.error().message);
    if (type == "enabled" && !budget.has_value()) return Fail("thinking.budget_tokens", "is missing");
    if (type == "enabled" && options_.can_reason) chat_["thinking_token_budget"] = *budget;
  }

  // `output_format` is an older name of output_config.format.
  void ReadOutputConfig() {
    const Json config = Object("output_config");
    if (const Json effort = config.value("effort", Json()); !effort.is_null()) {
      if (!effort.is_string()) return Fail("output_config.effort", "must be a string");
      chat_["reasoning_effort"] = effort;
    }
    if (options_.counts_only) return;
    const bool is_new = config.contains("format") && !config["format"].is_null();
    if (!is_new && fields_.Find("output_format") == nullptr) return;
    const char* field = is_new ? "output_config" : "output_format";
    // One member more than the gate takes, so that the gate refuses an object that was cut.
    const OrderedJson parsed =
        ParseInOrder(body_, {field}, static_cast<size_t>(options_.max_schema_keys) + 1);
    const OrderedJson& value = MemberOf(parsed, field);
    const OrderedJson& format = is_new ? MemberOf(value, "format") : value;
    const OrderedJson& schema = MemberOf(format, "schema");
    const std::string path = is_new ? "output_config.format" : "output_format";
    if (MemberOf(format, "type") != "json_schema" || schema.is_null())
      return Fail(path, R"(must be {"type": "json_schema", "schema": ...})");
    if (forces_call_) return Fail(path, "tool_choice forces a call, so that the answer has no format");
    chat_["response_format"] = {{"type", "json_schema"},
                                {"json_schema", {{"name", "output"}, {"schema", schema}}}};
  }

  void ReadGeneration() {
    RefuseOtherServersForms(&fields_);
    for (const char* name : kChatForms) {
      if (fields_.Find(name) != nullptr)
        Fail(name, absl::StrCat(name, " is of /v1/chat/completions: here the name is output_config.format"));
    }
    PassOn(kGenerationSame);
    PassOn(kGenerationLists, /*single=*/false);
    const std::optional<int64_t> max_tokens = fields_.Int("max_tokens", 1);
    if (!max_tokens.has_value()) return Fail("max_tokens", "max_tokens is missing");
    chat_["max_tokens"] = std::min(*max_tokens, options_.context);
    if (const auto stops = fields_.Strings("stop_sequences", /*lone_string=*/false,
                                           static_cast<size_t>(limits_.max_stop_strings),
                                           static_cast<size_t>(limits_.max_stop_string_bytes)))
      chat_["stop"] = *stops;
    const Json metadata = Object("metadata");
    FieldReader inner(metadata);
    if (const auto user = inner.String("user_id", std::numeric_limits<size_t>::max())) chat_["user"] = *user;
    if (!inner.ok()) Fail("metadata.user_id", "must be a string");
  }

  const absl::string_view body_;
  const ApiLimits& limits_;
  const ChatBodyOptions options_;
  FieldReader fields_;
  const OrderedJson ordered_;  // the members that the template shows to the model
  OrderedJson chat_ = OrderedJson::object();
  bool forces_call_ = false;
};

}  // namespace

const FieldTable& MessagesFieldTable() {
  static const auto* const table = new FieldTable(
      {SameAsChat(kConversationSame), SameAsChat(kGenerationSame), SameAsChat(kGenerationLists),
       SameAsChat(kOtherServersForms), kConversationFields, kGenerationFields});
  return *table;
}

const FieldTable& CountTokensFieldTable() {
  static const auto* const table = new FieldTable({SameAsChat(kConversationSame), kConversationFields});
  return *table;
}

BodyOrError ToChatBody(absl::string_view body, const ApiLimits& limits, const ChatBodyOptions& options) {
  const absl::StatusOr<Json> json =
      ParseJsonObject(body, JsonLimits{limits.max_json_depth, limits.max_json_values});
  if (!json.ok()) return BadRequest("", json.status().message());
  return ChatBodyMaker(body, *json, limits, options).Make();
}

absl::string_view MessagesField(absl::string_view field) {
  constexpr std::pair<absl::string_view, absl::string_view> kNames[] = {
      {"stop", "stop_sequences"},
      {"response_format", "output_config.format"},
      {"thinking_token_budget", "thinking.budget_tokens"},
      {"reasoning_effort", "output_config.effort"},
      {"user", "metadata.user_id"},
      {"continue_final_message", "messages"},
  };
  for (const auto& [chat, messages] : kNames) {
    if (field == chat) return messages;
  }
  return field;
}

ApiError InMessagesTerms(ApiError error) {
  absl::string_view problem = error.message;
  absl::ConsumePrefix(&problem, absl::StrCat(error.param, " "));
  // The number of a chat message is not the number of the client's message.
  if (error.param == "messages" && absl::StartsWith(problem, "messages[")) {
    const size_t end = problem.find("] ");
    if (end != absl::string_view::npos) problem.remove_prefix(end + 2);
  }
  error.message = std::string(problem);
  // A tool's schema.
  constexpr absl::string_view kParameters = "/function/parameters";
  const size_t parameters = absl::string_view(error.param).find(kParameters);
  if (absl::StartsWith(error.param, "/tools/") && parameters != std::string::npos)
    error.param.replace(parameters, kParameters.size(), "/input_schema");
  error.param = std::string(MessagesField(error.param));
  return error;
}

}  // namespace somnus
