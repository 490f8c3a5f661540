#include "coordinator/messages/tool_input.h"

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "coordinator/http/json_body.h"
#include "text/tools/json_text.h"

namespace somnus {
namespace {

constexpr int kMaxDepth = 128;  // as TurnLimits::max_depth

bool IsObject(absl::string_view text) {
  return absl::StartsWith(absl::StripLeadingAsciiWhitespace(text), "{") && IsJson(text, kMaxDepth);
}

// Returns the beginning of `text` up to the last value that is complete, with the brackets closed. `text`:
// the beginning of JSON.
std::string CompleteValues(absl::string_view text) {
  std::string open;  // the brackets that close what is open, outermost first
  size_t end = 0;
  std::string open_at_end;
  const auto mark = [&](size_t at) {
    end = at;
    open_at_end = open;
  };
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      in_string = c != '"';
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      open += c == '{' ? '}' : ']';
      mark(i + 1);
    } else if ((c == '}' || c == ']') && !open.empty()) {
      open.pop_back();
      mark(i + 1);
    } else if (c == ',') {
      mark(i);
    }
  }
  return absl::StrCat(text.substr(0, end), std::string(open_at_end.rbegin(), open_at_end.rend()));
}

}  // namespace

std::string ToolInput(absl::string_view arguments, bool is_cut) {
  if (absl::StripAsciiWhitespace(arguments).empty()) return "{}";
  if (IsObject(arguments)) return std::string(arguments);
  if (is_cut) {
    std::string complete = CompleteValues(arguments);
    if (IsObject(complete)) return complete;
  }
  std::string wrapped = R"({"INVALID_JSON":)";
  AppendJsonString(arguments, &wrapped);
  return wrapped + "}";
}

}  // namespace somnus
