#include "coordinator/responses/input_items.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"

namespace somnus {
namespace {

using OrderedJson = nlohmann::ordered_json;

// The fault of an item.
struct Problem {
  const char* field;  // of the item; empty: the item itself
  std::string message;
};
using MaybeProblem = std::optional<Problem>;

// Null where `object` has no such member.
const OrderedJson& Member(const OrderedJson& object, const char* name) {
  static const OrderedJson* const none = new OrderedJson();
  const auto it = object.find(name);
  return it == object.end() ? *none : *it;
}

// The member with the text of a content part of this type; nullptr: the part is no text.
const char* TextFieldOf(const OrderedJson& type) {
  if (type == "input_text" || type == "output_text" || type == "text") return "text";
  return type == "refusal" ? "refusal" : nullptr;
}

// Reads a text, or a list of texts and of parts that are texts, as the content of a chat message.
MaybeProblem ReadContent(const OrderedJson& item, const char* field, OrderedJson* content) {
  const OrderedJson& given = Member(item, field);
  if (given.is_string()) {
    *content = given;
    return std::nullopt;
  }
  if (!given.is_array()) return Problem{field, "must be a text, or a list of parts of type input_text"};
  *content = OrderedJson::array();
  for (const OrderedJson& part : given) {
    if (part.is_string()) {
      content->push_back({{"type", "text"}, {"text", part}});
      continue;
    }
    const char* const text = part.is_object() ? TextFieldOf(Member(part, "type")) : nullptr;
    if (text == nullptr)
      return Problem{field, "must have parts of type input_text alone: no images, files or sounds are read"};
    OrderedJson value = Member(part, text);
    if (!value.is_string()) return Problem{field, "has a part whose text is no string"};
    content->push_back({{"type", "text"}, {"text", std::move(value)}});
  }
  return std::nullopt;
}

class ItemsReader {
 public:
  explicit ItemsReader(OrderedJson* messages) : messages_(*messages) {}

  MaybeProblem Add(const OrderedJson& item) {
    if (!item.is_object()) return Problem{"", "must be an object"};
    const OrderedJson& type = Member(item, "type");
    if (type.is_null() || type == "message") return AddMessage(item);
    if (type == "function_call") return AddCall(item);
    if (type == "function_call_output") return AddCallOutput(item);
    if (type == "reasoning") return AddReasoning(item);
    if (type == "item_reference")
      return Problem{"type", "must not be item_reference: send the item, or previous_response_id"};
    return Problem{"type", "must be message, function_call, function_call_output or reasoning"};
  }
  // Ends the assistant's message that is open.
  void Flush() {
    if (turn_.is_null()) return;
    messages_.push_back(std::exchange(turn_, OrderedJson()));
  }

 private:
  // The assistant's message that later items may belong to.
  OrderedJson& Turn() {
    if (turn_.is_null()) turn_ = {{"role", "assistant"}, {"content", nullptr}};
    return turn_;
  }

  MaybeProblem AddMessage(const OrderedJson& item) {
    const OrderedJson& role = Member(item, "role");
    if (role != "user" && role != "assistant" && role != "system" && role != "developer")
      return Problem{"role", "must be user, assistant, system or developer"};
    OrderedJson content;
    if (MaybeProblem problem = ReadContent(item, "content", &content)) return problem;
    if (role != "assistant") {
      Flush();
      messages_.push_back({{"role", role}, {"content", std::move(content)}});
      return std::nullopt;
    }
    if (!Turn()["content"].is_null()) Flush();
    Turn()["content"] = std::move(content);
    return std::nullopt;
  }

  MaybeProblem AddCall(const OrderedJson& item) {
    for (const char* field : {"call_id", "name", "arguments"}) {
      if (!Member(item, field).is_string()) return Problem{field, "must be a string"};
    }
    Turn()["tool_calls"].push_back(
        {{"id", item["call_id"]},
         {"type", "function"},
         {"function", {{"name", item["name"]}, {"arguments", item["arguments"]}}}});
    return std::nullopt;
  }

  MaybeProblem AddCallOutput(const OrderedJson& item) {
    if (!Member(item, "call_id").is_string()) return Problem{"call_id", "must be a string"};
    OrderedJson content;
    if (MaybeProblem problem = ReadContent(item, "output", &content)) return problem;
    Flush();
    messages_.push_back(
        {{"role", "tool"}, {"tool_call_id", item["call_id"]}, {"content", std::move(content)}});
    return std::nullopt;
  }

  // Encrypted reasoning of other servers, and summaries, say nothing to a model here.
  MaybeProblem AddReasoning(const OrderedJson& item) {
    std::string text;
    if (const OrderedJson& content = Member(item, "content"); !content.is_null()) {
      if (!content.is_array()) return Problem{"content", "must be a list of parts of type reasoning_text"};
      for (const OrderedJson& part : content) {
        const OrderedJson value = part.is_object() ? Member(part, "text") : OrderedJson();
        if (!value.is_string()) return Problem{"content", "must have parts of type reasoning_text"};
        text += value.get_ref<const std::string&>();
      }
    }
    if (text.empty()) return std::nullopt;
    if (!turn_.is_null() && (!turn_["content"].is_null() || turn_.contains("tool_calls"))) Flush();
    Turn()["reasoning_content"] = absl::StrCat(Turn().value("reasoning_content", ""), text);
    return std::nullopt;
  }

  OrderedJson& messages_;
  OrderedJson turn_;  // null: no message is open
};

}  // namespace

std::optional<ApiError> ReadInput(const OrderedJson& input, OrderedJson* messages) {
  if (input.is_string()) {
    messages->push_back({{"role", "user"}, {"content", input}});
    return std::nullopt;
  }
  if (!input.is_array()) return BadRequest("input", "input must be a text or a list of items");
  ItemsReader reader(messages);
  for (size_t i = 0; i < input.size(); ++i) {
    const MaybeProblem problem = reader.Add(input[i]);
    if (!problem.has_value()) continue;
    const std::string param =
        absl::StrCat("input[", i, "]", *problem->field == '\0' ? "" : ".", problem->field);
    return BadRequest(param, absl::StrCat(param, " ", problem->message));
  }
  reader.Flush();
  return std::nullopt;
}

void AppendMessages(const OrderedJson& messages, std::string* out) {
  for (const OrderedJson& message : messages) {
    absl::StrAppend(out, out->empty() ? "" : ",",
                    message.dump(-1, ' ', false, OrderedJson::error_handler_t::replace));
  }
}

}  // namespace somnus
