#include "coordinator/http/query_string.h"

#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_split.h"

namespace somnus {
namespace {

std::string Decode(absl::string_view text, char plus) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '%' && i + 2 < text.size() && absl::ascii_isxdigit(text[i + 1]) &&
        absl::ascii_isxdigit(text[i + 2])) {
      out += absl::HexStringToBytes(text.substr(i + 1, 2));
      i += 2;
    } else {
      out += text[i] == '+' ? plus : text[i];
    }
  }
  return out;
}

// Names and values, decoded, in order.
std::vector<std::pair<std::string, std::string>> Parameters(absl::string_view query) {
  std::vector<std::pair<std::string, std::string>> parameters;
  for (const absl::string_view pair : absl::StrSplit(query, '&', absl::SkipEmpty())) {
    const std::pair<absl::string_view, absl::string_view> parts =
        absl::StrSplit(pair, absl::MaxSplits('=', 1));
    parameters.emplace_back(DecodeQuery(parts.first), DecodeQuery(parts.second));
  }
  return parameters;
}

}  // namespace

std::string DecodePath(absl::string_view text) { return Decode(text, '+'); }

std::string DecodeQuery(absl::string_view text) { return Decode(text, ' '); }

std::vector<std::string> QueryValues(absl::string_view query, absl::string_view name) {
  std::vector<std::string> values;
  for (auto& [given, value] : Parameters(query)) {
    if (given == name) values.push_back(std::move(value));
  }
  return values;
}

std::vector<std::string> QueryNames(absl::string_view query) {
  std::vector<std::string> names;
  for (auto& [name, value] : Parameters(query)) names.push_back(std::move(name));
  return names;
}

}  // namespace somnus
