// Renders messages, tools and the chat template's other variables to a prompt.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "coordinator/http/json_body.h"
#include "coordinator/openai/openai_request.h"
#include "coordinator/openai/prior_turns.h"
#include "coordinator/openai/request_fields.h"
#include "coordinator/structured/json_values.h"
#include "text/jinja/chat_template.h"
#include "text/jinja/continued_message.h"
#include "text/tools/call_ids.h"

namespace somnus {
namespace {

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;

constexpr size_t kMaxMessages = 16384;
constexpr size_t kMaxKeys = 64;  // of an object that reaches the template
constexpr absl::string_view kRoles[] = {"system", "developer", "user", "assistant", "tool", "function"};

// Whether every object in `value` is small enough for ordered_json, which searches keys one by one.
bool HasFewKeys(const Json& value) {
  return !value.is_structured() || ((!value.is_object() || value.size() <= kMaxKeys) &&
                                    std::all_of(value.begin(), value.end(), HasFewKeys));
}

bool HasToolCalls(const Json& message) {
  if (!message.is_object()) return false;
  const auto calls = message.find("tool_calls");
  return calls != message.end() && !calls->is_null();
}

// Parses again, with keys in the order of the body, the members with objects that templates print. Members
// that are refused later, or that have no such objects, are left out.
OrderedJson ReadPrinted(absl::string_view body, FieldReader* fields) {
  std::vector<absl::string_view> members;
  const Json* messages = fields->Find("messages");
  if (messages != nullptr && messages->is_array() && messages->size() <= kMaxMessages &&
      std::any_of(messages->begin(), messages->end(), HasToolCalls)) {
    members.push_back("messages");
  }
  for (const char* name : {"tools", "documents", "chat_template_kwargs"}) {
    const Json* value = fields->Find(name);
    if (value != nullptr && HasFewKeys(*value)) members.push_back(name);
  }
  return members.empty() ? OrderedJson::object() : ParseInOrder(body, members, kMaxKeys);
}

// Returns nullptr when there is none.
const OrderedJson* Member(const OrderedJson* object, const std::string& key) {
  if (object == nullptr || !object->is_object()) return nullptr;
  const auto it = object->find(key);
  return it == object->end() ? nullptr : &*it;
}

const OrderedJson* Item(const OrderedJson* array, size_t i) {
  return array == nullptr || !array->is_array() || i >= array->size() ? nullptr : &(*array)[i];
}

// Copies `ordered`, which is `value` with its keys in order. Returns false when `ordered` has too many keys,
// or when there is no `ordered`.
bool CopyInOrder(const Json& value, const OrderedJson* ordered, OrderedJson* to) {
  if (ordered == nullptr || !HasFewKeys(value)) return false;
  *to = *ordered;
  return true;
}

// Returns where a content part of `type` has its text; nullptr: the part is no text.
const char* TextFieldOf(const Json& type) {
  for (const char* name : {"text", "refusal", "thinking"}) {
    if (type == name) return name;
  }
  // The types that clients of OpenAI's newer API write.
  return type == "input_text" || type == "output_text" ? "text" : nullptr;
}

// Returns why a content part that is no text is refused. Images and the like are named: the model may be the
// text part of a model that sees.
std::string NotText(const Json& part) {
  constexpr char kWanted[] = "content parts must be texts: \"...\" or {\"type\": \"text\", \"text\": ...}";
  const Json type = part.is_object() ? part.value("type", Json()) : Json();
  for (const char* kind : {"image_url", "input_image", "image_pil", "image_embeds", "image", "input_audio",
                           "audio_url", "audio", "video_url", "video", "input_file", "file"}) {
    if (type == kind) return absl::StrCat(kWanted, "; parts of type ", kind, " are not supported");
  }
  return kWanted;
}

// Joins content parts, which may be plain strings, to a text, with a newline between two parts. Returns the
// fault of a part; empty: none.
std::string JoinParts(const Json& parts, std::string* text) {
  std::vector<std::string> texts;
  for (const Json& part : parts) {
    if (part.is_string()) {
      texts.push_back(part.get<std::string>());
      continue;
    }
    const char* field = part.is_object() ? TextFieldOf(part.value("type", Json())) : nullptr;
    if (field == nullptr || !part.contains(field) || !part[field].is_string()) return NotText(part);
    texts.push_back(part[field].get<std::string>());
  }
  *text = absl::StrJoin(texts, "\n");
  return "";
}

// Replaces the argument string of a tool call by the object that the string spells, which templates expect. A
// string that spells no object becomes an empty object, so that a model's mistake does not end the
// conversation. Returns false when the object has too many keys.
bool ArgumentsToObject(OrderedJson* function) {
  const auto it = function->find("arguments");
  OrderedJson object = OrderedJson::object();
  if (it != function->end() && it->is_object()) return true;
  if (it != function->end() && it->is_string()) {
    const std::string& text = it->get_ref<const std::string&>();
    const absl::StatusOr<Json> parsed = ParseJsonObject(text, JsonLimits{});
    if (parsed.ok() && !HasFewKeys(*parsed)) return false;
    if (parsed.ok()) object = ParseInOrder(text, {}, kMaxKeys);
  }
  (*function)["arguments"] = std::move(object);
  return true;
}

// For templates that join the arguments of calls to their own text.
void ArgumentsToString(OrderedJson* messages) {
  for (OrderedJson& message : *messages) {
    const auto calls = message.find("tool_calls");
    if (calls == message.end()) continue;
    for (OrderedJson& call : *calls) call["function"]["arguments"] = call["function"]["arguments"].dump();
  }
}

// Returns why an assistant's calls are refused; empty: the calls are valid and were added to `copy`.
std::string AddToolCalls(const Json& calls, const OrderedJson* ordered, OrderedJson* copy) {
  if (!calls.is_array()) return "tool_calls must be a list";
  if (calls.empty()) return "";
  OrderedJson list;
  if (!CopyInOrder(calls, ordered, &list)) return "tool_calls has too many keys";
  for (OrderedJson& call : list) {
    if (!call.is_object() || !call.contains("function") || !call["function"].is_object() ||
        (call.contains("type") && call["type"] != "function"))
      return "tool_calls must hold objects of type function";
    if (!ArgumentsToObject(&call["function"])) return "tool_calls has too many keys";
  }
  (*copy)["tool_calls"] = std::move(list);
  return "";
}

// Returns the fault of a message's role; empty: none.
std::string CheckRole(const Json& message, bool any_role) {
  if (!message.contains("role") || !message["role"].is_string()) return "role must be a string";
  const std::string& role = message["role"].get_ref<const std::string&>();
  if (any_role || std::find(std::begin(kRoles), std::end(kRoles), role) != std::end(kRoles)) return "";
  return absl::StrCat("role must be one of ", absl::StrJoin(kRoles, ", "));
}

// Reads a message's content into `text`. Returns the fault of the content; empty: none.
std::string ReadContent(const Json& message, std::string* text) {
  const auto content = message.find("content");
  const bool by_assistant = message["role"] == "assistant";
  if (content == message.end()) {
    // An assistant's message may consist of tool calls alone.
    return by_assistant && HasToolCalls(message) ? "" : "content is missing";
  }
  if (content->is_string()) {
    *text = content->get<std::string>();
  } else if (content->is_array()) {
    return JoinParts(*content, text);
  } else if (!content->is_null() || !by_assistant) {
    return "content must be a string or a list of text parts";
  }
  return "";
}

// Returns why `message` is refused; empty: `message` is valid and was appended to `out`.
std::string AddMessage(const Json& message, const OrderedJson* ordered, bool any_role, OrderedJson* out) {
  if (!message.is_object()) return "must be an object";
  if (const std::string problem = CheckRole(message, any_role); !problem.empty()) return problem;
  std::string text;
  if (const std::string problem = ReadContent(message, &text); !problem.empty()) return problem;
  OrderedJson copy;
  copy["role"] = message["role"].get<std::string>();
  copy["content"] = text;
  for (const char* key : {"name", "tool_call_id", "reasoning_content", "reasoning"}) {
    const auto it = message.find(key);
    if (it == message.end() || it->is_null()) continue;
    if (!it->is_string()) return absl::StrCat(key, " must be a string");
    copy[key] = it->get<std::string>();
    // Two names of the same thing: some templates use the first, some the second.
    if (key == absl::string_view("reasoning_content")) copy["reasoning"] = copy[key];
    if (key == absl::string_view("reasoning")) copy["reasoning_content"] = copy[key];
  }
  if (const auto calls = message.find("tool_calls"); calls != message.end() && !calls->is_null()) {
    const std::string problem = AddToolCalls(*calls, Member(ordered, "tool_calls"), &copy);
    if (!problem.empty()) return problem;
  }
  out->push_back(std::move(copy));
  return "";
}

OrderedJson ReadMessages(FieldReader* fields, const OrderedJson* ordered, bool any_role) {
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
  for (size_t i = 0; i < messages->size(); ++i) {
    const std::string problem = AddMessage((*messages)[i], Item(ordered, i), any_role, &out);
    if (!problem.empty()) {
      fields->Fail("messages", absl::StrCat("messages[", i, "] ", problem));
      return out;
    }
  }
  return out;
}

// For templates that do not handle the role "developer": joins system and developer messages to one system
// message in front, because many templates accept a system message in no other place.
OrderedJson DevelopersToSystem(OrderedJson messages, const std::string& chat_template) {
  const auto is = [](const OrderedJson& message, const char* role) { return message["role"] == role; };
  if (absl::StrContains(chat_template, "\"developer\"") || absl::StrContains(chat_template, "'developer'") ||
      std::none_of(messages.begin(), messages.end(), [&](const auto& m) { return is(m, "developer"); })) {
    return messages;
  }
  std::vector<std::string> said;
  OrderedJson rest = OrderedJson::array();
  for (OrderedJson& message : messages) {
    if (!is(message, "developer") && !is(message, "system")) {
      rest.push_back(std::move(message));
    } else if (std::string text = message["content"].get<std::string>(); !text.empty()) {
      said.push_back(std::move(text));
    }
  }
  OrderedJson all = OrderedJson::array();
  all.push_back({{"role", "system"}, {"content", absl::StrJoin(said, "\n\n")}});
  for (OrderedJson& message : rest) all.push_back(std::move(message));
  return all;
}

// The last message must have a text to continue. DevelopersToSystem may have moved a developer's message.
void CheckFinalMessage(FieldReader* fields, const OrderedJson& messages) {
  const Json* all = fields->Find("messages");
  if (!fields->ok() || all == nullptr) return;
  const Json& last = all->back();
  const auto content = last.find("content");
  if (content == last.end() || content->is_null() || (content->is_array() && content->empty())) {
    return fields->Fail("continue_final_message", "continue_final_message needs a last message with a text");
  }
  if (last["role"] != messages.back()["role"]) {
    fields->Fail(
        "continue_final_message",
        "continue_final_message goes with no last message of a developer: the chat template does not "
        "know that role");
  }
}

// The error for a request that needs a missing template; `problem`: why a template file is of no use, or "".
std::string TemplateProblem(const std::string& problem) {
  if (problem.empty()) return "the model has no chat template: use /v1/completions";
  return absl::StrCat("the model's chat template cannot be used: ", CleanMessage(problem),
                      "; /v1/completions needs none");
}

// Returns the template for the request, or nullptr after an error.
const ChatTemplate* ChooseTemplate(FieldReader* fields, const ModelTemplates& templates, bool with_tools) {
  const bool for_tools = with_tools && (templates.tools != nullptr || !templates.tools_problem.empty());
  const ChatTemplate* chosen = for_tools ? templates.tools.get() : templates.chat.get();
  if (chosen == nullptr)
    fields->Fail("messages", TemplateProblem(for_tools ? templates.tools_problem : templates.chat_problem));
  return chosen;
}

// Sets an error when the template raises an exception, or does not write the text that is to be continued.
std::string RenderPrompt(FieldReader* fields, const ChatTemplate& chosen, const OrderedJson& context,
                         bool go_on) {
  absl::StatusOr<std::string> rendered = go_on ? RenderContinued(chosen, context) : chosen.Render(context);
  if (rendered.ok()) return *std::move(rendered);
  const std::string reason = CleanMessage(rendered.status().message());
  if (absl::IsFailedPrecondition(rendered.status())) {
    fields->Fail("continue_final_message", reason);
  } else {
    fields->Fail("messages", absl::StrCat("The chat template refused: ", reason));
  }
  return "";
}

// A name stands within quotes where a call is forced.
bool IsToolName(const std::string& name) {
  return !name.empty() && std::none_of(name.begin(), name.end(), [](char c) {
    return c == '"' || c == '\\' || absl::ascii_iscntrl(static_cast<unsigned char>(c));
  });
}

// The template shows tools to the model.
void ReadTools(FieldReader* fields, const OrderedJson* ordered, const GateOptions& gate, OrderedJson* context,
               std::vector<ToolSpec>* specs) {
  const Json* tools = fields->Find("tools");
  if (tools == nullptr) return;
  if (!tools->is_array()) return fields->Fail("tools", "tools must be a list");
  // Tools are copied, printed by the template and made a grammar: the values of all are bounded together.
  if (HasMoreValues(*tools, gate.max_values))
    return fields->Fail("tools", absl::StrCat("tools have more than ", gate.max_values, " values together"));
  OrderedJson list = OrderedJson::array();
  for (size_t i = 0; i < tools->size(); ++i) {
    const Json& tool = (*tools)[i];
    const auto function = tool.is_object() ? tool.find("function") : tool.end();
    if (!tool.is_object() || function == tool.end() || !function->is_object() ||
        !function->contains("name") || !(*function)["name"].is_string() ||
        (tool.contains("type") && tool["type"] != "function")) {
      return fields->Fail("tools",
                          "every tool must be {\"type\": \"function\", \"function\": {\"name\": ...}}");
    }
    if (!IsToolName((*function)["name"].get_ref<const std::string&>())) {
      return fields->Fail(
          "tools",
          "the name of a tool must not be empty, nor have quotes, backslashes or control characters");
    }
    const Json parameters = function->value("parameters", Json());
    if (!parameters.is_null() && !parameters.is_object())
      return fields->Fail("tools", "the parameters of a tool must be a JSON schema, which is an object");
    OrderedJson copy = {{"type", "function"}, {"function", OrderedJson::object()}};
    for (const char* key : {"name", "description", "parameters"}) {
      const OrderedJson* in_order = Member(Member(Item(ordered, i), "function"), key);
      const auto it = function->find(key);
      OrderedJson& value = copy["function"][key];  // null where the key is not given
      if (it != function->end() && !CopyInOrder(*it, in_order, &value))
        return fields->Fail("tools", "tools have too many keys");
    }
    const Json strict = function->value("strict", Json());
    if (!strict.is_null() && !strict.is_boolean())
      return fields->Fail("tools", "strict must be true or false");
    specs->push_back({.name = (*function)["name"].get<std::string>(),
                      .parameters = copy["function"]["parameters"],
                      .strict = strict.is_boolean() && strict.get<bool>()});
    list.push_back(std::move(copy));
  }
  (*context)["tools"] = std::move(list);
}

void ReadDocuments(FieldReader* fields, const OrderedJson* ordered, OrderedJson* context) {
  const Json* documents = fields->Find("documents");
  if (documents == nullptr) return;
  const auto fits = [](const Json& document) {
    return document.is_object() &&
           std::all_of(document.begin(), document.end(), [](const Json& value) { return value.is_string(); });
  };
  if (!documents->is_array() || !std::all_of(documents->begin(), documents->end(), fits) ||
      !CopyInOrder(*documents, ordered, &(*context)["documents"])) {
    fields->Fail("documents", "documents must be a list of small objects of strings");
  }
}

// Sets the template's variables for reasoning. `enable_thinking`, by which some models think or do not,
// follows the effort unless chat_template_kwargs has set the variable.
void AddReasoningEffort(FieldReader* fields, OrderedJson* context) {
  const std::optional<std::string> effort = fields->String("reasoning_effort", 16);
  constexpr absl::string_view kEfforts[] = {"none", "minimal", "low", "medium", "high", "xhigh", "max"};
  if (effort.has_value() &&
      std::find(std::begin(kEfforts), std::end(kEfforts), *effort) == std::end(kEfforts))
    fields->Fail("reasoning_effort",
                 "reasoning_effort must be none, minimal, low, medium, high, xhigh or max");
  if (!effort.has_value()) return;
  (*context)["reasoning_effort"] = *effort;
  if (!context->contains("enable_thinking")) (*context)["enable_thinking"] = *effort != "none";
}

void AddTemplateKwargs(FieldReader* fields, const OrderedJson* ordered, OrderedJson* context) {
  const Json* kwargs = fields->Find("chat_template_kwargs");
  if (kwargs == nullptr) return;
  if (!kwargs->is_object() || kwargs->size() > kMaxKeys) {
    return fields->Fail("chat_template_kwargs", "chat_template_kwargs must be a small object");
  }
  for (const auto& [key, value] : kwargs->items()) {
    if (key == "chat_template" && !value.is_null())
      return fields->Fail("chat_template_kwargs", "a chat_template in a request is not supported");
    if (key == "messages")
      return fields->Fail("chat_template_kwargs", "chat_template_kwargs must not hold messages");
    // Variables that the request's own fields or the model have set are not replaced.
    if (context->contains(key) || key == "chat_template" || key == "tokenize" || key == "tools") continue;
    if (!CopyInOrder(value, Member(ordered, key), &(*context)[key]))
      return fields->Fail("chat_template_kwargs", "chat_template_kwargs must hold small objects only");
  }
}

// --default-chat-template-kwargs: a request's own variables go before.
void AddDefaultKwargs(const ServedModel& model, OrderedJson* context) {
  if (model.default_template_kwargs == nullptr) return;
  for (const auto& [key, value] : model.default_template_kwargs->items()) {
    if (!context->contains(key)) (*context)[key] = value;
  }
}

void JoinTurns(FieldReader* fields, const ServedModel& model, const PriorTurns& turns, RenderedChat* chat) {
  absl::StatusOr<std::vector<int32_t>> ids =
      turns.Join(chat->text, fields->Bool("add_special_tokens").value_or(false));
  if (!ids.ok()) return fields->Fail("messages", CleanMessage(ids.status().message()));
  chat->ids = *std::move(ids);
  chat->text = model.tokenizer->Decode(chat->ids, /*skip_special_tokens=*/false);
}

}  // namespace

RenderedChat RenderChat(absl::string_view body, FieldReader* fields, const ServedModel& model, bool any_role,
                        bool generation_prompt) {
  const OrderedJson printed = ReadPrinted(body, fields);
  OrderedJson context;
  RenderedChat chat;
  OrderedJson messages = ReadMessages(fields, Member(&printed, "messages"), any_role);
  chat.earlier_calls = CountCalls(messages);
  const PriorTurns turns(fields, model, &messages);
  context["messages"] = DevelopersToSystem(std::move(messages), model.tokenizer->data().chat_template);
  if (model.turn_format.tools != nullptr)
    NormalizeCallIds(model.turn_format.tools->ids, &context["messages"]);
  if (model.arguments_form == ArgumentsForm::kString) ArgumentsToString(&context["messages"]);
  ReadTools(fields, Member(&printed, "tools"), model.gate, &context, &chat.tools);
  ReadDocuments(fields, Member(&printed, "documents"), &context);
  const bool go_on = fields->Bool("continue_final_message").value_or(false);
  const bool add_prompt = fields->Bool("add_generation_prompt").value_or(generation_prompt);
  if (go_on && add_prompt) {
    fields->Fail("continue_final_message",
                 "continue_final_message goes with add_generation_prompt false: they exclude each other");
  }
  context["add_generation_prompt"] = add_prompt;
  const TokenizerData& data = model.tokenizer->data();
  context["bos_token"] = data.bos_token;
  context["eos_token"] = data.eos_token;
  context["unk_token"] = data.unk_token_text;
  context["pad_token"] = data.pad_token;
  AddTemplateKwargs(fields, Member(&printed, "chat_template_kwargs"), &context);
  AddReasoningEffort(fields, &context);
  AddDefaultKwargs(model, &context);
  // Templates compare the variables with "none", and an undefined variable would not be equal to "none".
  for (const char* name : {"tools", "documents"}) {
    if (!context.contains(name)) context[name] = nullptr;
  }
  if (go_on && turns.has_last())
    fields->Fail("continue_final_message",
                 "continue_final_message goes with no token_ids of the last message");
  if (go_on) CheckFinalMessage(fields, context["messages"]);
  const ChatTemplate* chosen = ChooseTemplate(fields, model.templates, !context["tools"].is_null());
  if (!fields->ok()) return {};
  chat.text = RenderPrompt(fields, *chosen, context, go_on);
  if (!fields->ok()) return {};
  if (!turns.empty()) JoinTurns(fields, model, turns, &chat);
  const OrderedJson& last = context["messages"].back();
  chat.role = add_prompt ? "assistant" : last["role"].get<std::string>();
  if (last["role"] == chat.role) chat.echo_text = last["content"].get<std::string>();
  return chat;
}

}  // namespace somnus
