#include "text/tools/json_scanner.h"

#include "absl/strings/ascii.h"
#include "text/tools/json_text.h"

namespace somnus {
namespace {

bool IsBare(char c) { return absl::ascii_isalnum(c) || c == '-' || c == '+' || c == '.'; }

}  // namespace

JsonScanner::Result JsonScanner::Read(char c, std::string* out) {
  switch (at_) {
    case At::kString:
    case At::kEscape:
      return ReadString(c, out);
    case At::kBare:
      if (!IsBare(c)) {
        at_ = At::kDone;
        return Result::kDoneBefore;
      }
      *out += c;
      return Result::kMore;
    case At::kDone:
      return Result::kDoneBefore;
    default:
      return ReadOutside(c, out);
  }
}

JsonScanner::Result JsonScanner::ReadString(char c, std::string* out) {
  if (at_ == At::kEscape) {
    // A backslash before a line break is written as the escape of the line break.
    *out += c == '\n' ? 'n' : c;
    at_ = At::kString;
    return Result::kMore;
  }
  if (c == '\\') {
    *out += c;
    at_ = At::kEscape;
    return Result::kMore;
  }
  if (c != '"') {
    AppendEscaped(c, out);
    return Result::kMore;
  }
  *out += c;
  return Close();
}

JsonScanner::Result JsonScanner::Close() {
  at_ = open_.empty() ? At::kDone : At::kBetween;
  return open_.empty() ? Result::kDone : Result::kMore;
}

JsonScanner::Result JsonScanner::ReadOutside(char c, std::string* out) {
  if (IsJsonSpace(c)) {
    if (at_ != At::kStart) *out += c;
    return Result::kMore;
  }
  const bool is_closing = c == '}' || c == ']';
  if (is_closing && (open_.empty() || open_.back() != c)) return Result::kBad;
  if ((c == ',' || c == ':') && open_.empty()) return Result::kBad;
  if ((c == '{' || c == '[') && static_cast<int>(open_.size()) >= max_depth_) return Result::kBad;
  if (!is_closing && c != '{' && c != '[' && c != ',' && c != ':' && c != '"' && !IsBare(c))
    return Result::kBad;
  *out += c;
  last_ = c;
  at_ = At::kBetween;
  if (is_closing) {
    open_.pop_back();
    return Close();
  }
  if (c == '{' || c == '[') open_ += c == '{' ? '}' : ']';
  if (c == '"') at_ = At::kString;
  if (IsBare(c) && open_.empty()) at_ = At::kBare;
  return Result::kMore;
}

std::string JsonScanner::Missing() const {
  if (at_ == At::kString || at_ == At::kEscape || last_ == ',' || last_ == ':') return "";
  return std::string(open_.rbegin(), open_.rend());
}

}  // namespace somnus
