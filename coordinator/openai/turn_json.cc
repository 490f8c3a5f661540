#include "coordinator/openai/turn_json.h"

#include "absl/strings/str_cat.h"
#include "coordinator/http/json_body.h"

namespace somnus {
namespace {

// An estimate of a call's JSON beside its texts.
constexpr int64_t kCallJsonBytes = 96;

void AppendMember(const char* name, const std::string& text, std::string* out) {
  absl::StrAppend(out, "\"", name, "\":");
  AppendJsonString(text, out);
}

void AppendFunction(const char* member, const std::string& name, const std::string& arguments,
                    std::string* out) {
  absl::StrAppend(out, "\"", member, "\":{");
  AppendMember("name", name, out);
  *out += ',';
  AppendMember("arguments", arguments, out);
  *out += '}';
}

}  // namespace

int64_t TurnEventJsonBytes(const TurnEvent& event) {
  const int64_t call = event.kind == TurnEvent::Kind::kCallBegin ? kCallJsonBytes : 0;
  return call + static_cast<int64_t>(event.text.size() + event.id.size() + event.name.size());
}

void CollectedTurn::Add(const std::vector<TurnEvent>& events) {
  for (const TurnEvent& event : events) {
    switch (event.kind) {
      case TurnEvent::Kind::kContent:
        content_ += event.text;
        break;
      case TurnEvent::Kind::kReasoning:
        reasoning_ += event.text;
        break;
      case TurnEvent::Kind::kCallBegin:
        calls_.push_back({event.id, event.name, ""});
        break;
      case TurnEvent::Kind::kArguments:
        calls_[event.call].arguments += event.text;
        break;
      case TurnEvent::Kind::kCallEnd:
        break;
    }
  }
}

void CollectedTurn::AppendMessage(bool legacy_functions, std::string* out) const {
  *out += "\"content\":";
  if (content_.empty() && (has_calls() || !reasoning_.empty())) {
    *out += "null";
  } else {
    AppendJsonString(content_, out);
  }
  *out += ",\"refusal\":null,\"annotations\":null,\"audio\":null,";
  const bool is_legacy = legacy_functions && has_calls();
  if (is_legacy) {
    AppendFunction("function_call", calls_[0].name, calls_[0].arguments, out);
  } else {
    *out += "\"function_call\":null";
  }
  *out += ',';
  if (reasoning_.empty()) {
    *out += "\"reasoning\":null";
  } else {
    AppendMember("reasoning", reasoning_, out);
    *out += ',';
    AppendMember("reasoning_content", reasoning_, out);
  }
  if (!has_calls() || is_legacy) return;
  *out += ",\"tool_calls\":[";
  for (size_t i = 0; i < calls_.size(); ++i) {
    *out += i == 0 ? "{" : ",{";
    AppendMember("id", calls_[i].id, out);
    *out += ",\"type\":\"function\",";
    AppendFunction("function", calls_[i].name, calls_[i].arguments, out);
    *out += '}';
  }
  *out += ']';
}

void AppendTurnDelta(const TurnEvent& event, bool legacy_functions, std::string* out) {
  switch (event.kind) {
    case TurnEvent::Kind::kContent:
      return AppendMember("content", event.text, out);
    case TurnEvent::Kind::kReasoning:
      AppendMember("reasoning", event.text, out);
      *out += ',';
      return AppendMember("reasoning_content", event.text, out);
    case TurnEvent::Kind::kCallBegin:
      if (legacy_functions) return AppendFunction("function_call", event.name, "", out);
      absl::StrAppend(out, "\"tool_calls\":[{\"index\":", event.call, ",");
      AppendMember("id", event.id, out);
      *out += ",\"type\":\"function\",";
      AppendFunction("function", event.name, "", out);
      *out += "}]";
      return;
    case TurnEvent::Kind::kArguments:
      if (legacy_functions) {
        *out += "\"function_call\":{";
      } else {
        absl::StrAppend(out, "\"tool_calls\":[{\"index\":", event.call, ",\"function\":{");
      }
      AppendMember("arguments", event.text, out);
      *out += legacy_functions ? "}" : "}}]";
      return;
    case TurnEvent::Kind::kCallEnd:
      return;
  }
}

}  // namespace somnus
