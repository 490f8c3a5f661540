#include "text/jinja/lexer.h"

#include <algorithm>
#include <array>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/utf8.h"
#include "text/jinja/text.h"

namespace somnus::jinja {
namespace {

std::string NormalizeNewlines(const std::string& source) {
  std::string out;
  out.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r') {
      out += '\n';
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    } else {
      out += source[i];
    }
  }
  if (!out.empty() && out.back() == '\n') out.pop_back();
  return out;
}

bool IsNameStart(char c) { return absl::ascii_isalpha(c) || c == '_' || (c & 0x80); }
bool IsNamePart(char c) { return IsNameStart(c) || absl::ascii_isdigit(c); }

class Lexer {
 public:
  explicit Lexer(const std::string& source) : s_(NormalizeNewlines(source)) {}

  absl::StatusOr<std::vector<Token>> Run() {
    while (pos_ < s_.size()) {
      const size_t tag = FindTag();
      const bool found = tag != std::string::npos;
      size_t data_end = found ? tag : s_.size();
      const char kind = found ? s_[tag + 1] : ' ';
      const char sign = found && tag + 2 < s_.size() ? s_[tag + 2] : ' ';
      if (found) data_end = DataEnd(tag, kind, sign);
      Emit(Token::Kind::kText, s_.substr(pos_, data_end - pos_));
      if (!found) break;
      Advance(tag);
      Advance(tag + (sign == '-' || sign == '+' ? 3 : 2));
      if (kind == '#') {
        RETURN_IF_ERROR(Comment());
      } else if (kind == '%' && AtRaw()) {
        RETURN_IF_ERROR(Raw());
      } else {
        RETURN_IF_ERROR(Tag(kind == '{'));
      }
    }
    Emit(Token::Kind::kEnd, "");
    return std::move(tokens_);
  }

 private:
  absl::Status Error(absl::string_view reason) const {
    return absl::InvalidArgumentError(absl::StrCat("line ", line_, ": ", reason));
  }

  void Emit(Token::Kind kind, std::string text) {
    if (kind != Token::Kind::kText || !text.empty()) tokens_.push_back({kind, std::move(text), line_});
  }

  void Advance(size_t to) {
    line_ += static_cast<int>(
        std::count(s_.begin() + static_cast<ptrdiff_t>(pos_), s_.begin() + static_cast<ptrdiff_t>(to), '\n'));
    pos_ = to;
  }

  bool At(absl::string_view text) const {
    return s_.compare(pos_, text.size(), text.data(), text.size()) == 0;
  }

  size_t FindTag() const {
    for (size_t at = s_.find('{', pos_); at != std::string::npos; at = s_.find('{', at + 1)) {
      if (at + 1 < s_.size() && (s_[at + 1] == '{' || s_[at + 1] == '%' || s_[at + 1] == '#')) return at;
    }
    return std::string::npos;
  }

  // Returns where the text before a tag ends, without the white space that "-" or lstrip_blocks removes.
  size_t DataEnd(size_t tag, char kind, char sign) const {
    const absl::string_view text = absl::string_view(s_).substr(pos_, tag - pos_);
    if (sign == '-') return pos_ + Strip(text, std::nullopt, false, true).size();
    if (sign == '+' || kind == '{') return tag;
    const size_t newline = text.rfind('\n');
    const bool line_starts = newline != absl::string_view::npos || pos_ == 0 || s_[pos_ - 1] == '\n';
    const size_t begin = newline == absl::string_view::npos ? 0 : newline + 1;
    return line_starts && Strip(text.substr(begin), std::nullopt, true, false).empty() ? pos_ + begin : tag;
  }

  void SkipSpaces() {
    Advance(s_.size() - Strip(absl::string_view(s_).substr(pos_), std::nullopt, true, false).size());
  }

  // At a tag's end delimiter, which may have a sign: consumes the delimiter and the white space that is
  // trimmed behind.
  bool TakeEnd(absl::string_view delimiter, bool trim) {
    const char sign = s_[pos_];
    const bool is_signed = sign == '-' || (sign == '+' && trim);
    if (s_.compare(pos_ + is_signed, delimiter.size(), delimiter.data(), delimiter.size()) != 0) return false;
    Advance(pos_ + is_signed + delimiter.size());
    if (is_signed && sign == '-') {
      SkipSpaces();
    } else if (!is_signed && trim && pos_ < s_.size() && s_[pos_] == '\n') {
      Advance(pos_ + 1);
    }
    return true;
  }

  absl::Status Comment() {
    // A sign before "#}" belongs to the end delimiter: search "#}", then look at the preceding character.
    const size_t end = s_.find("#}", pos_);
    if (end == std::string::npos) return Error("unfinished comment");
    Advance(end > pos_ && (s_[end - 1] == '-' || s_[end - 1] == '+') ? end - 1 : end);
    TakeEnd("#}", true);
    return absl::OkStatus();
  }

  bool AtRaw() const {
    absl::string_view rest = Strip(absl::string_view(s_).substr(pos_), std::nullopt, true, false);
    if (rest.substr(0, 3) != "raw") return false;
    rest = Strip(rest.substr(3), std::nullopt, true, false);
    return rest.substr(0, 2) == "%}" || rest.substr(0, 3) == "-%}";
  }

  absl::Status Raw() {
    SkipSpaces();
    Advance(pos_ + 3);
    SkipSpaces();
    TakeEnd("%}", s_[pos_] == '-');  // no newline is trimmed here
    for (size_t at = s_.find("{%", pos_); at != std::string::npos; at = s_.find("{%", at + 1)) {
      const char sign = at + 2 < s_.size() ? s_[at + 2] : ' ';
      const size_t name = at + 2 + (sign == '-' || sign == '+');
      absl::string_view rest =
          Strip(absl::string_view(s_).substr(std::min(name, s_.size())), std::nullopt, true, false);
      if (rest.substr(0, 6) != "endraw") continue;
      rest = Strip(rest.substr(6), std::nullopt, true, false);
      if (rest.substr(0, 2) != "%}" && rest.substr(0, 3) != "-%}" && rest.substr(0, 3) != "+%}") continue;
      Emit(Token::Kind::kText, s_.substr(pos_, DataEnd(at, '%', sign) - pos_));
      Advance(s_.size() - rest.size());
      TakeEnd("%}", true);
      return absl::OkStatus();
    }
    return Error("missing end of raw directive");
  }

  absl::Status Tag(bool output) {
    Emit(output ? Token::Kind::kOutputBegin : Token::Kind::kBlockBegin, "");
    std::string brackets;
    while (true) {
      SkipSpaces();
      if (pos_ >= s_.size()) return Error("unexpected end of template");
      if (brackets.empty() && TakeEnd(output ? "}}" : "%}", !output)) {
        Emit(output ? Token::Kind::kOutputEnd : Token::Kind::kBlockEnd, "");
        return absl::OkStatus();
      }
      const char c = s_[pos_];
      if (c == '(' || c == '[' || c == '{') brackets += c;
      if (c == ')' || c == ']' || c == '}') {
        const char open = c == ')' ? '(' : c == ']' ? '[' : '{';
        if (brackets.empty() || brackets.back() != open)
          return Error(absl::StrCat("unexpected '", std::string(1, c), "'"));
        brackets.pop_back();
      }
      RETURN_IF_ERROR(ExpressionToken());
    }
  }

  absl::Status ExpressionToken() {
    const char c = s_[pos_];
    if (IsNameStart(c)) {
      size_t end = pos_;
      while (end < s_.size() && IsNamePart(s_[end])) ++end;
      Emit(Token::Kind::kName, s_.substr(pos_, end - pos_));
      pos_ = end;
      return absl::OkStatus();
    }
    if (absl::ascii_isdigit(c)) return Number();
    if (c == '"' || c == '\'') return String();
    static constexpr std::array<absl::string_view, 27> kOperators = {
        "//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[", "]",
        "(",  ")",  "{",  "}",  ">",  "<",  "=", ".", ":", "|", ",", ";", "!"};
    for (const absl::string_view op : kOperators) {
      if (!At(op)) continue;
      Emit(Token::Kind::kOperator, std::string(op));
      pos_ += op.size();
      return absl::OkStatus();
    }
    return Error(absl::StrCat("unexpected character '", std::string(1, c), "'"));
  }

  // Returns the end of digits with single underscores in between.
  size_t DigitsEnd(size_t at) const {
    while (at < s_.size() && (absl::ascii_isdigit(s_[at]) ||
                              (s_[at] == '_' && at + 1 < s_.size() && absl::ascii_isdigit(s_[at + 1])))) {
      ++at;
    }
    return at;
  }

  absl::Status Number() {
    size_t end = DigitsEnd(pos_);
    bool is_float = false;
    const char prefix =
        end < s_.size() && end == pos_ + 1 && s_[pos_] == '0' ? absl::ascii_tolower(s_[end]) : ' ';
    if (prefix == 'x' || prefix == 'o' || prefix == 'b') {
      end = pos_ + 2;
      while (end < s_.size() && (absl::ascii_isxdigit(s_[end]) || s_[end] == '_')) ++end;
    } else {
      // After a dot a number is an index without a fraction, as in a.0.1.
      const bool after_dot = pos_ > 0 && s_[pos_ - 1] == '.';
      if (!after_dot && end + 1 < s_.size() && s_[end] == '.' && absl::ascii_isdigit(s_[end + 1])) {
        is_float = true;
        end = DigitsEnd(end + 1);
      }
      if (!after_dot && end < s_.size() && (s_[end] == 'e' || s_[end] == 'E')) {
        const size_t digits = end + 1 + (end + 1 < s_.size() && (s_[end + 1] == '+' || s_[end + 1] == '-'));
        if (digits < s_.size() && absl::ascii_isdigit(s_[digits])) {
          is_float = true;
          end = DigitsEnd(digits);
        }
      }
    }
    std::string text = s_.substr(pos_, end - pos_);
    text.erase(std::remove(text.begin(), text.end(), '_'), text.end());
    Emit(is_float ? Token::Kind::kFloat : Token::Kind::kInt, std::move(text));
    pos_ = end;
    return absl::OkStatus();
  }

  absl::Status String() {
    const char quote = s_[pos_];
    std::string value;
    size_t at = pos_ + 1;
    while (at < s_.size() && s_[at] != quote) {
      if (s_[at] != '\\') {
        value += s_[at++];
      } else if (at + 1 < s_.size()) {
        RETURN_IF_ERROR(EscapeSequence(&at, &value));
      } else {
        break;
      }
    }
    if (at >= s_.size()) return Error("unfinished string");
    Emit(Token::Kind::kString, std::move(value));
    Advance(at + 1);
    return absl::OkStatus();
  }

  // Reads an escape as Python's "unicode-escape" does; an unknown escape stays unchanged.
  absl::Status EscapeSequence(size_t* at, std::string* value) {
    static constexpr absl::string_view kLetters = "abfnrtv\\'\"", kMeanings = "\a\b\f\n\r\t\v\\'\"";
    const char c = s_[*at + 1];
    *at += 2;
    if (const size_t i = kLetters.find(c); i != absl::string_view::npos) {
      *value += kMeanings[i];
    } else if (c == 'x' || c == 'u' || c == 'U') {
      char32_t code = 0;
      if (!HexDigits(at, c == 'x' ? 2 : c == 'u' ? 4 : 8, &code)) return Error("bad escape in a string");
      const bool pair = code >= 0xD800 && code < 0xDC00 && s_.compare(*at, 2, "\\u") == 0;
      if (pair) {
        size_t next = *at + 2;
        char32_t low = 0;
        if (HexDigits(&next, 4, &low) && low >= 0xDC00 && low < 0xE000) {
          code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
          *at = next;
        }
      }
      if (code > 0x10FFFF) return Error("bad escape in a string");
      AppendUtf8(code >= 0xD800 && code < 0xE000 ? 0xFFFD : code, value);
    } else if (c >= '0' && c <= '7') {
      char32_t code = static_cast<char32_t>(c - '0');
      for (int i = 0; i < 2 && *at < s_.size() && s_[*at] >= '0' && s_[*at] <= '7'; ++i) {
        code = code * 8 + static_cast<char32_t>(s_[(*at)++] - '0');
      }
      AppendUtf8(code, value);
    } else if (c != '\n') {
      *value += '\\';
      *value += c;
    }
    return absl::OkStatus();
  }

  bool HexDigits(size_t* at, int count, char32_t* code) const {
    for (; count > 0; --count, ++*at) {
      if (*at >= s_.size() || !absl::ascii_isxdigit(s_[*at])) return false;
      const char c = absl::ascii_tolower(s_[*at]);
      *code = *code * 16 + static_cast<char32_t>(absl::ascii_isdigit(c) ? c - '0' : c - 'a' + 10);
    }
    return true;
  }

  const std::string s_;
  size_t pos_ = 0;
  int line_ = 1;
  std::vector<Token> tokens_;
};

}  // namespace

absl::StatusOr<std::vector<Token>> Tokenize(const std::string& source) { return Lexer(source).Run(); }

}  // namespace somnus::jinja
