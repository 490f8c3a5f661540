#include "text/tools/call_ids.h"

#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/random_hex.h"

namespace somnus {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMistralLength = 9;

// Nine letters and digits that depend on `text` alone.
std::string NineAlphanumeric(absl::string_view text) {
  constexpr absl::string_view kDigits = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
  uint64_t hash = 14695981039346656037u;  // FNV-1a
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211u;
  std::string id;
  for (size_t i = 0; i < kMistralLength; ++i, hash /= kDigits.size()) id += kDigits[hash % kDigits.size()];
  return id;
}

bool IsNineAlphanumeric(absl::string_view id) {
  for (const char c : id) {
    if (!absl::ascii_isalnum(c)) return false;
  }
  return id.size() == kMistralLength;
}

std::string FunctionIndex(absl::string_view name, int64_t index) {
  return absl::StrCat("functions.", name, ":", index);
}

// The calls of a message, or null.
Json* CallsOf(Json& message) {
  if (!message.is_object()) return nullptr;
  const auto calls = message.find("tool_calls");
  return calls != message.end() && calls->is_array() ? &*calls : nullptr;
}

std::string StringOr(const Json& object, const char* key, absl::string_view otherwise) {
  const auto value = object.find(key);
  return value != object.end() && value->is_string() ? value->get<std::string>() : std::string(otherwise);
}

std::string IdOfStyle(CallIdStyle style, const std::string& id, const Json& call, int64_t index) {
  if (style == CallIdStyle::kNineAlphanumeric) return IsNineAlphanumeric(id) ? id : NineAlphanumeric(id);
  const auto function = call.find("function");
  if (function == call.end() || !function->is_object()) return id;
  return FunctionIndex(StringOr(*function, "name", ""), index);
}

}  // namespace

MakeCallId CallIdMaker(CallIdStyle style, int64_t earlier_calls) {
  switch (style) {
    case CallIdStyle::kNineAlphanumeric:
      return [](absl::string_view, int32_t) { return NineAlphanumeric(RandomHex(8)); };
    case CallIdStyle::kFunctionIndex:
      return [earlier_calls](absl::string_view name, int32_t index) {
        return FunctionIndex(name, earlier_calls + index);
      };
    default:
      return [](absl::string_view, int32_t) { return absl::StrCat("call_", RandomHex(12)); };
  }
}

int64_t CountCalls(const Json& messages) {
  int64_t count = 0;
  for (const Json& message : messages) {
    const auto calls = message.is_object() ? message.find("tool_calls") : message.end();
    if (message.is_object() && calls != message.end() && calls->is_array()) {
      count += static_cast<int64_t>(calls->size());
    }
  }
  return count;
}

void NormalizeCallIds(CallIdStyle style, Json* messages) {
  if (style == CallIdStyle::kRandom || !messages->is_array()) return;
  std::map<std::string, std::string> changed;
  int64_t index = 0;
  for (Json& message : *messages) {
    if (Json* const calls = CallsOf(message); calls != nullptr) {
      for (Json& call : *calls) {
        if (!call.is_object()) continue;
        const std::string id = StringOr(call, "id", "");
        const std::string new_id = IdOfStyle(style, id, call, index++);
        changed[id] = new_id;
        call["id"] = new_id;
      }
      continue;
    }
    if (!message.is_object()) continue;
    const std::string id = StringOr(message, "tool_call_id", "");
    if (const auto found = changed.find(id); found != changed.end()) message["tool_call_id"] = found->second;
  }
}

}  // namespace somnus
