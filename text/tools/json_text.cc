#include "text/tools/json_text.h"

#include <nlohmann/json.hpp>

#include "absl/strings/ascii.h"
#include "absl/strings/str_format.h"
#include "text/tools/json_scanner.h"

namespace somnus {

void AppendEscaped(char c, std::string* json) {
  switch (c) {
    case '"':
      *json += "\\\"";
      return;
    case '\\':
      *json += "\\\\";
      return;
    case '\n':
      *json += "\\n";
      return;
    case '\t':
      *json += "\\t";
      return;
    case '\r':
      *json += "\\r";
      return;
    default:
      if (static_cast<unsigned char>(c) < 0x20) {
        absl::StrAppendFormat(json, "\\u%04x", static_cast<int>(c));
      } else {
        *json += c;
      }
  }
}

std::string Quoted(absl::string_view text) {
  std::string json = "\"";
  for (const char c : text) AppendEscaped(c, &json);
  return json + "\"";
}

bool IsJsonNumber(absl::string_view text) {
  return !text.empty() && (text[0] == '-' || absl::ascii_isdigit(text[0])) && !IsJsonSpace(text.back()) &&
         nlohmann::json::accept(text.begin(), text.end());
}

bool IsJson(absl::string_view text, int max_depth) {
  JsonScanner scanner(max_depth);
  std::string copy;
  for (const char c : text) {
    if (scanner.Read(c, &copy) == JsonScanner::Result::kBad) return false;
    if (scanner.done()) break;
  }
  return nlohmann::json::accept(text.begin(), text.end());
}

}  // namespace somnus
