#include "text/tools/loose_value.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/utf8.h"
#include "text/tools/json_text.h"

namespace somnus {
namespace {

constexpr size_t kMaxWord = 4096;

// The JSON of a bare word.
std::string JsonOfWord(absl::string_view word) {
  if (word == "True" || word == "true") return "true";
  if (word == "False" || word == "false") return "false";
  if (word == "None" || word == "null" || word == "none" || word == "nil") return "null";
  if (IsJsonNumber(word)) return std::string(word);
  // Python's other ways to write a number: 1_000, +1, .5, 5. and 0x1f.
  std::string number = absl::StrReplaceAll(word, {{"_", ""}});
  if (absl::StartsWith(number, "0x")) {
    uint64_t value;
    if (absl::SimpleHexAtoi(number, &value)) return absl::StrCat(value);
  }
  if (absl::StartsWith(number, "+")) number.erase(0, 1);
  const size_t digits = absl::StartsWith(number, "-") ? 1 : 0;
  if (number.compare(digits, 1, ".") == 0) number.insert(digits, "0");
  if (absl::EndsWith(number, ".")) number += "0";
  return IsJsonNumber(number) ? number : Quoted(word);
}

size_t EscapeDigits(char kind) { return kind == 'x' ? 2 : kind == 'u' ? 4 : kind == 'U' ? 8 : 0; }

// The JSON of an escape of one letter after the backslash.
std::string JsonOfEscape(char c) {
  constexpr absl::string_view kLetters = "nrtbfav0'\"\\";
  constexpr absl::string_view kValues("\n\r\t\b\f\a\v\0'\"\\", 11);
  std::string json;
  if (c == '\n') return json;  // the line goes on
  if (const size_t at = kLetters.find(c); at != absl::string_view::npos) {
    AppendEscaped(kValues[at], &json);
    return json;
  }
  AppendEscaped('\\', &json);  // Python keeps the backslash of an unknown escape
  AppendEscaped(c, &json);
  return json;
}

// The JSON of \xHH, \uHHHH and \UHHHHHHHH, whose letter and digits `word` holds.
std::string JsonOfCode(const std::string& word) {
  uint64_t code;
  if (!absl::SimpleHexAtoi(word.substr(1), &code) || code > 0x10FFFF) return absl::StrCat("\\\\", word);
  if (code <= 0xFFFF) return absl::StrCat("\\u", absl::Hex(code, absl::kZeroPad4));
  std::string json;
  AppendUtf8(static_cast<char32_t>(code), &json);
  return json;
}

}  // namespace

ReadState LooseValue::Read(char c, std::string* json) {
  switch (at_) {
    case At::kValue:
      return ReadValueStart(c, json);
    case At::kAfter:
      return ReadAfter(c, json);
    case At::kWord:
      return ReadWord(c, json);
    case At::kQuote:
    case At::kQuoteQuote:
      return ReadQuotes(c, json);
    case At::kString:
      return ReadString(c, json);
    case At::kEscape:
      return ReadEscape(c, json);
    case At::kMarker:
      return ReadMarker(c, json);
    case At::kMarked:
      return ReadMarked(c, json);
    default:
      return ReadState::kStop;
  }
}

// The comma before a value is written with the value, since Python allows a comma without a value behind it.
void LooseValue::BeginValue(std::string* json) {
  if (needs_comma_) *json += ", ";
  needs_comma_ = false;
}

ReadState LooseValue::EndValue() {
  if (open_.empty()) {
    at_ = At::kEnded;
    return ReadState::kDone;
  }
  at_ = At::kAfter;
  return ReadState::kMore;
}

bool LooseValue::CloseBracket(char c, std::string* json) {
  if (open_.empty() || open_.back() != c || (c == '}' && at_ == At::kValue && !expects_key_)) return false;
  open_.pop_back();
  needs_comma_ = false;
  expects_key_ = false;
  *json += c;
  return true;
}

ReadState LooseValue::ReadValueStart(char c, std::string* json) {
  if (IsJsonSpace(c)) return ReadState::kMore;
  if (CloseBracket(c, json)) return EndValue();
  if (!marker_.empty() && c == marker_[0]) {
    word_ = c;
    at_ = At::kMarker;
    return ReadState::kMore;
  }
  if ((c == '{' || c == '[') && !is_key()) {
    if (static_cast<int>(open_.size()) >= max_depth_) return ReadState::kStop;
    BeginValue(json);
    *json += c;
    open_ += c == '{' ? '}' : ']';
    expects_key_ = c == '{';
    return ReadState::kMore;
  }
  if (c == '"' || c == '\'') {
    BeginValue(json);
    quote_ = c;
    at_ = At::kQuote;
    return ReadState::kMore;
  }
  if (absl::string_view("{}[](),:=<>").find(c) != absl::string_view::npos) return ReadState::kStop;
  BeginValue(json);
  word_ = c;
  at_ = At::kWord;
  return ReadState::kMore;
}

ReadState LooseValue::ReadAfter(char c, std::string* json) {
  if (IsJsonSpace(c)) return ReadState::kMore;
  if (is_key()) {
    if (c != ':') return ReadState::kStop;
    *json += ": ";
    expects_key_ = false;
    at_ = At::kValue;
    return ReadState::kMore;
  }
  if (CloseBracket(c, json)) return EndValue();
  if (c != ',') return ReadState::kStop;
  needs_comma_ = true;
  expects_key_ = open_.back() == '}';
  at_ = At::kValue;
  return ReadState::kMore;
}

// A word ends where the value must end. Gemma's words may hold spaces.
ReadState LooseValue::ReadWord(char c, std::string* json) {
  const absl::string_view ends = is_key() ? ":,}]" : open_.empty() ? ",)]}\n" : ",}]";
  if (ends.find(c) == absl::string_view::npos) {
    const bool is_call_or_prefix = marker_.empty() && (c == '(' || c == '\'' || c == '"');
    if (is_call_or_prefix || word_.size() >= kMaxWord) return ReadState::kStop;
    word_ += c;
    return ReadState::kMore;
  }
  const absl::string_view word = absl::StripTrailingAsciiWhitespace(word_);
  *json += is_key() ? Quoted(word) : JsonOfWord(word);
  if (EndValue() == ReadState::kDone) return ReadState::kStop;
  return ReadAfter(c, json);
}

// After the first quote, or the second: the string is empty, triple-quoted, or goes on.
ReadState LooseValue::ReadQuotes(char c, std::string* json) {
  if (at_ == At::kQuote && c == quote_) {
    at_ = At::kQuoteQuote;
    return ReadState::kMore;
  }
  *json += '"';
  is_triple_ = at_ == At::kQuoteQuote && c == quote_;
  quotes_ = 0;
  if (at_ == At::kQuoteQuote && !is_triple_) {
    *json += '"';
    return EndValue() == ReadState::kDone ? ReadState::kStop : ReadAfter(c, json);
  }
  at_ = At::kString;
  return is_triple_ ? ReadState::kMore : ReadString(c, json);
}

ReadState LooseValue::ReadString(char c, std::string* json) {
  if (c == quote_ && ++quotes_ == (is_triple_ ? 3 : 1)) {
    *json += '"';
    return EndValue();
  }
  if (c == quote_) return ReadState::kMore;
  for (; quotes_ > 0; --quotes_) AppendEscaped(quote_, json);
  if (c == '\\') {
    word_.clear();
    at_ = At::kEscape;
  } else {
    AppendEscaped(c, json);
  }
  return ReadState::kMore;
}

ReadState LooseValue::ReadEscape(char c, std::string* json) {
  if (word_.empty() && EscapeDigits(c) > 0) {
    word_ = c;
    return ReadState::kMore;
  }
  if (word_.empty()) {
    *json += JsonOfEscape(c);
    at_ = At::kString;
    return ReadState::kMore;
  }
  if (!absl::ascii_isxdigit(c)) {
    *json += absl::StrCat("\\\\", word_);
    at_ = At::kString;
    return ReadString(c, json);
  }
  word_ += c;
  if (word_.size() <= EscapeDigits(word_[0])) return ReadState::kMore;
  *json += JsonOfCode(word_);
  at_ = At::kString;
  return ReadState::kMore;
}

ReadState LooseValue::ReadMarker(char c, std::string* json) {
  word_ += c;
  if (!absl::StartsWith(marker_, word_)) return ReadState::kStop;
  if (word_.size() < marker_.size()) return ReadState::kMore;
  BeginValue(json);
  *json += '"';
  word_.clear();
  at_ = At::kMarked;
  return ReadState::kMore;
}

ReadState LooseValue::ReadMarked(char c, std::string* json) {
  word_ += c;
  while (!absl::StartsWith(marker_, word_)) {
    AppendEscaped(word_.front(), json);
    word_.erase(0, 1);
  }
  if (word_ != marker_) return ReadState::kMore;
  *json += '"';
  return EndValue();
}

void LooseValue::Close(std::string* json) {
  switch (at_) {
    case At::kEnded:
      return;
    case At::kWord:
      *json += is_key() ? Quoted(word_) : JsonOfWord(absl::StripTrailingAsciiWhitespace(word_));
      break;
    case At::kQuote:
    case At::kQuoteQuote:
      *json += "\"\"";
      break;
    case At::kString:
    case At::kEscape:
    case At::kMarked:
      *json += '"';
      break;
    case At::kValue:
    case At::kMarker:
      // A value must follow a colon, and be where nothing is.
      if (open_.empty() || (open_.back() == '}' && !expects_key_)) *json += "null";
      break;
    case At::kAfter:
      break;
  }
  if (at_ != At::kValue && at_ != At::kMarker && is_key()) *json += ": null";
  json->append(open_.rbegin(), open_.rend());
  at_ = At::kEnded;
}

}  // namespace somnus
