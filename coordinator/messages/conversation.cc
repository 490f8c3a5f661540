#include "coordinator/messages/conversation.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace somnus {
namespace {

using OrderedJson = nlohmann::ordered_json;

// Begins a system block in which Claude Code tells its version and a number that changes with every request.
// The model has no use for the block, and the prefix cache would find no prompt again.
constexpr absl::string_view kBillingHeader = "x-anthropic-billing-header:";

// The string at `key`, or null.
const std::string* StringAt(const OrderedJson& object, const char* key) {
  const auto it = object.find(key);
  return it == object.end() || !it->is_string() ? nullptr : &it->get_ref<const std::string&>();
}

// Appends `text` to the string `to`, with a line break in between unless one is empty.
void AppendLine(const std::string& text, OrderedJson* to) {
  auto& string = to->get_ref<std::string&>();
  absl::StrAppend(&string, string.empty() || text.empty() ? "" : "\n", text);
}

class ConversationReader {
 public:
  explicit ConversationReader(FieldReader* fields) : fields_(fields) {}

  void ReadSystem(const OrderedJson& system) {
    if (system.is_null()) return;
    std::vector<std::string> texts = ReadTexts(system, "system");
    std::erase_if(texts, [](const std::string& text) { return absl::StartsWith(text, kBillingHeader); });
    if (!texts.empty()) Add("system", absl::StrJoin(texts, "\n"));
  }

  void ReadMessages(const OrderedJson& messages) {
    if (messages.is_null()) return Fail("messages", "messages is missing");
    if (!messages.is_array() || messages.empty())
      return Fail("messages", "messages must be a list that is not empty");
    for (size_t i = 0; i < messages.size() && fields_->ok(); ++i)
      ReadMessage(messages[i], absl::StrCat("messages[", i, "]"));
    if (fields_->ok()) CheckLast();
  }

  Conversation Take() { return std::move(result_); }

 private:
  void Fail(absl::string_view path, absl::string_view problem) { fields_->Fail(path, problem); }

  // Adds a text to the turn of the role that is under way, or begins a turn.
  void Add(const char* role, const std::string& text) {
    OrderedJson& messages = result_.messages;
    if (messages.empty() || messages.back()["role"] != role) {
      messages.push_back({{"role", role}, {"content", text}});
    } else {
      AppendLine(text, &messages.back()["content"]);
    }
  }

  // The type of a block; empty after an error. Clients of other APIs write texts as plain strings, and with
  // types of their own.
  std::string TypeOf(const OrderedJson& block, const std::string& path) {
    if (block.is_string()) return "text";
    const std::string* type = block.is_object() ? StringAt(block, "type") : nullptr;
    if (type != nullptr && (*type == "input_text" || *type == "output_text")) return "text";
    if (type != nullptr && !type->empty()) return *type;
    Fail(path, "a block must be a text or an object with a type");
    return "";
  }
  // The text of a block of type text; empty after an error.
  std::string TextOf(const OrderedJson& block, const std::string& path) {
    return block.is_string() ? block.get<std::string>() : Member(block, "text", path);
  }
  // The string that a block must have at `key`; empty after an error.
  std::string Member(const OrderedJson& block, const char* key, const std::string& path) {
    const std::string* value = StringAt(block, key);
    if (value == nullptr) Fail(absl::StrCat(path, ".", key), "must be a string");
    return value == nullptr ? "" : *value;
  }
  void RefuseType(const std::string& type, const std::string& path) {
    Fail(path, absl::StrCat("blocks of type ", type.substr(0, 40), " are not supported here"));
  }

  // Reads a string or a list of text blocks.
  std::vector<std::string> ReadTexts(const OrderedJson& content, const std::string& path) {
    if (content.is_string()) return {content.get<std::string>()};
    std::vector<std::string> texts;
    if (!content.is_array()) Fail(path, "must be a string or a list of blocks");
    for (size_t i = 0; content.is_array() && i < content.size() && fields_->ok(); ++i) {
      const std::string here = absl::StrCat(path, "[", i, "]");
      const std::string type = TypeOf(content[i], here);
      if (type == "text") {
        texts.push_back(TextOf(content[i], here));
      } else if (!type.empty()) {
        RefuseType(type, here);
      }
    }
    return texts;
  }

  void ReadMessage(const OrderedJson& message, const std::string& path) {
    if (!message.is_object()) return Fail(path, "must be an object");
    const std::string* role = StringAt(message, "role");
    const auto content = message.find("content");
    const std::string content_path = absl::StrCat(path, ".content");
    if (content == message.end()) return Fail(content_path, "is missing");
    if (role != nullptr && *role == "user") return ReadUser(*content, content_path);
    if (role != nullptr && *role == "assistant") return ReadAssistant(*content, content_path);
    if (role == nullptr || *role != "system")
      return Fail(absl::StrCat(path, ".role"), "must be user or assistant");
    Add("system", absl::StrJoin(ReadTexts(*content, content_path), "\n"));
  }

  void ReadUser(const OrderedJson& content, const std::string& path) {
    if (content.is_string()) return Add("user", content.get_ref<const std::string&>());
    if (!content.is_array() || content.empty())
      return Fail(path, "must be a string or a list of blocks that is not empty");
    for (size_t i = 0; i < content.size() && fields_->ok(); ++i) {
      const std::string here = absl::StrCat(path, "[", i, "]");
      const std::string type = TypeOf(content[i], here);
      if (type == "text") {
        Add("user", TextOf(content[i], here));
      } else if (type == "tool_result") {
        ReadToolResult(content[i], here);
      } else if (!type.empty()) {
        RefuseType(type, here);
      }
    }
  }

  // Chat templates know no errors of tools: the text says so.
  void ReadToolResult(const OrderedJson& block, const std::string& path) {
    const std::string id = Member(block, "tool_use_id", path);
    std::string text;
    if (const auto content = block.find("content"); content != block.end() && !content->is_null())
      text = absl::StrJoin(ReadTexts(*content, absl::StrCat(path, ".content")), "\n");
    const auto is_error = block.find("is_error");
    if (is_error != block.end() && *is_error == true) text = absl::StrCat("Error: ", text);
    result_.messages.push_back({{"role", "tool"}, {"tool_call_id", id}, {"content", text}});
  }

  void ReadAssistant(const OrderedJson& content, const std::string& path) {
    if (content.is_string()) return Add("assistant", content.get_ref<const std::string&>());
    if (!content.is_array()) return Fail(path, "must be a string or a list of blocks");
    std::string text, thinking;
    OrderedJson calls = OrderedJson::array();
    for (size_t i = 0; i < content.size() && fields_->ok(); ++i) {
      const std::string here = absl::StrCat(path, "[", i, "]");
      const std::string type = TypeOf(content[i], here);
      if (type == "text") {
        text += TextOf(content[i], here);
      } else if (type == "thinking") {
        thinking += Member(content[i], "thinking", here);
      } else if (type == "tool_use") {
        ReadToolUse(content[i], here, &calls);
      } else if (type == "image" || type == "document") {
        RefuseType(type, here);
      }
      // All other blocks are records of what Anthropic's server has done in a turn, or are encrypted for that
      // server (redacted_thinking): the model here cannot read such blocks.
    }
    AddAssistant(text, thinking, std::move(calls));
  }

  void ReadToolUse(const OrderedJson& block, const std::string& path, OrderedJson* calls) {
    const std::string id = Member(block, "id", path), name = Member(block, "name", path);
    const auto input = block.find("input");
    if (input == block.end() || !input->is_object())
      return Fail(absl::StrCat(path, ".input"), "must be an object");
    calls->push_back(
        {{"id", id}, {"type", "function"}, {"function", {{"name", name}, {"arguments", *input}}}});
  }

  void AddAssistant(const std::string& text, const std::string& thinking, OrderedJson calls) {
    Add("assistant", text);
    OrderedJson& turn = result_.messages.back();
    if (!thinking.empty() && !turn.contains("reasoning_content")) turn["reasoning_content"] = "";
    if (!thinking.empty()) AppendLine(thinking, &turn["reasoning_content"]);
    if (calls.empty()) return;
    OrderedJson& all = turn["tool_calls"];
    for (OrderedJson& call : calls) all.push_back(std::move(call));
  }

  // A last turn of the assistant is the beginning of the answer.
  void CheckLast() {
    const OrderedJson& last = result_.messages.back();
    if (last["role"] != "assistant") return;
    result_.continues = true;
    if (last.contains("tool_calls"))
      return Fail("messages", "a tool_use must be followed by a user's message with its tool_result");
    if (last["content"] == "")
      Fail("messages", "the last message is the assistant's, and has no text that could go on");
  }

  FieldReader* const fields_;
  Conversation result_;
};

}  // namespace

Conversation ReadConversation(const OrderedJson& system, const OrderedJson& messages, FieldReader* fields) {
  ConversationReader reader(fields);
  reader.ReadSystem(system);
  if (fields->ok()) reader.ReadMessages(messages);
  return reader.Take();
}

}  // namespace somnus
