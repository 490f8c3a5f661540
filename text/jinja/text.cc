#include "text/jinja/text.h"

#include <unicode/locid.h>
#include <unicode/uchar.h>
#include <unicode/unistr.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/utf8.h"

namespace somnus::jinja {
namespace {

size_t Next(absl::string_view s, size_t pos) { return pos + DecodeUtf8(s, pos).length; }

size_t Previous(absl::string_view s, size_t pos) {
  do {
    --pos;
  } while (pos > 0 && (s[pos] & 0xC0) == 0x80);
  return pos;
}

icu::UnicodeString ToIcu(absl::string_view s) {
  return icu::UnicodeString::fromUTF8(icu::StringPiece(s.data(), static_cast<int32_t>(s.size())));
}

std::string FromIcu(const icu::UnicodeString& text) {
  std::string out;
  return text.toUTF8String(out);
}

std::vector<absl::string_view> SplitSpaces(absl::string_view s, int64_t max_split) {
  std::vector<absl::string_view> out;
  s = Strip(s, std::nullopt, true, false);
  while (!s.empty()) {
    if (max_split >= 0 && static_cast<int64_t>(out.size()) == max_split) {
      out.push_back(s);
      return out;
    }
    size_t end = 0;
    while (end < s.size() && !IsPySpace(DecodeUtf8(s, end).code)) end = Next(s, end);
    out.push_back(s.substr(0, end));
    s = Strip(s.substr(end), std::nullopt, true, false);
  }
  return out;
}

std::vector<absl::string_view> SplitSpacesRight(absl::string_view s, int64_t max_split) {
  std::vector<absl::string_view> out;
  s = Strip(s, std::nullopt, false, true);
  while (!s.empty()) {
    if (max_split >= 0 && static_cast<int64_t>(out.size()) == max_split) {
      out.push_back(s);
      break;
    }
    size_t begin = s.size();
    while (begin > 0 && !IsPySpace(DecodeUtf8(s, Previous(s, begin)).code)) begin = Previous(s, begin);
    out.push_back(s.substr(begin));
    s = Strip(s.substr(0, begin), std::nullopt, false, true);
  }
  std::reverse(out.begin(), out.end());
  return out;
}

bool IsLineBreak(char32_t c) {
  return (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 || c == 0x2029;
}

}  // namespace

bool IsPySpace(char32_t code) { return (code >= 0x1C && code <= 0x1F) || u_isUWhiteSpace(code); }

int64_t CharCount(absl::string_view s) {
  return std::count_if(s.begin(), s.end(), [](char c) { return (c & 0xC0) != 0x80; });
}

size_t CharOffset(absl::string_view s, int64_t index) {
  size_t pos = 0;
  for (; index > 0 && pos < s.size(); --index) pos = Next(s, pos);
  return pos;
}

std::vector<absl::string_view> Characters(absl::string_view s) {
  std::vector<absl::string_view> out;
  out.reserve(s.size());
  for (size_t pos = 0; pos < s.size();) {
    const size_t next = Next(s, pos);
    out.push_back(s.substr(pos, next - pos));
    pos = next;
  }
  return out;
}

absl::string_view Strip(absl::string_view s, std::optional<absl::string_view> chars, bool left, bool right) {
  std::vector<char32_t> set;
  if (chars) {
    for (size_t pos = 0; pos < chars->size(); pos = Next(*chars, pos))
      set.push_back(DecodeUtf8(*chars, pos).code);
    std::sort(set.begin(), set.end());
  }
  const auto drop = [&](size_t pos) {
    const char32_t code = DecodeUtf8(s, pos).code;
    return chars ? std::binary_search(set.begin(), set.end(), code) : IsPySpace(code);
  };
  while (left && !s.empty() && drop(0)) s.remove_prefix(Next(s, 0));
  while (right && !s.empty() && drop(Previous(s, s.size())))
    s.remove_suffix(s.size() - Previous(s, s.size()));
  return s;
}

std::vector<absl::string_view> Split(absl::string_view s, std::optional<absl::string_view> separator,
                                     int64_t max_split, bool from_right) {
  if (!separator) return from_right ? SplitSpacesRight(s, max_split) : SplitSpaces(s, max_split);
  std::vector<absl::string_view> out;
  while (max_split < 0 || static_cast<int64_t>(out.size()) < max_split) {
    const size_t at = from_right ? s.rfind(*separator) : s.find(*separator);
    if (at == absl::string_view::npos) break;
    const size_t after = at + separator->size();
    out.push_back(from_right ? s.substr(after) : s.substr(0, at));
    s = from_right ? s.substr(0, at) : s.substr(after);
  }
  out.push_back(s);
  if (from_right) std::reverse(out.begin(), out.end());
  return out;
}

std::vector<absl::string_view> SplitLines(absl::string_view s, bool keep_ends) {
  std::vector<absl::string_view> out;
  size_t begin = 0, pos = 0;
  while (pos < s.size()) {
    const Utf8Step step = DecodeUtf8(s, pos);
    const size_t end = pos;
    pos += step.length;
    if (!IsLineBreak(step.code)) continue;
    if (step.code == '\r' && pos < s.size() && s[pos] == '\n') ++pos;
    out.push_back(s.substr(begin, (keep_ends ? pos : end) - begin));
    begin = pos;
  }
  if (begin < s.size()) out.push_back(s.substr(begin));
  return out;
}

std::string Upper(absl::string_view s) {
  if (IsAscii(s)) return absl::AsciiStrToUpper(s);
  return FromIcu(ToIcu(s).toUpper(icu::Locale::getRoot()));
}

std::string Lower(absl::string_view s) {
  if (IsAscii(s)) return absl::AsciiStrToLower(s);
  return FromIcu(ToIcu(s).toLower(icu::Locale::getRoot()));
}

std::string CaseFold(absl::string_view s) {
  return IsAscii(s) ? absl::AsciiStrToLower(s) : FromIcu(ToIcu(s).foldCase());
}

namespace {

// Appends one character in title case. A digraph such as U+01C6 has a title case of its own; "ß" becomes
// "Ss".
void AppendTitleCase(absl::string_view character, std::string* out) {
  const auto code = static_cast<UChar32>(DecodeUtf8(character, 0).code);
  const UChar32 title = u_totitle(code);
  if (title != code || u_toupper(code) != code) return AppendUtf8(static_cast<char32_t>(title), out);
  const std::string upper = Upper(character);
  const size_t first = Utf8Length(static_cast<unsigned char>(upper[0]));
  absl::StrAppend(out, upper.substr(0, first), Lower(upper.substr(first)));
}

}  // namespace

std::string Capitalize(absl::string_view s) {
  std::string out;
  if (s.empty()) return out;
  const size_t first = Next(s, 0);
  AppendTitleCase(s.substr(0, first), &out);
  return out + Lower(s.substr(first));
}

std::string TitleMethod(absl::string_view s) {
  std::string out;
  bool previous_cased = false;
  for (const absl::string_view character : Characters(s)) {
    const auto code = static_cast<UChar32>(DecodeUtf8(character, 0).code);
    if (previous_cased) {
      out += Lower(character);
    } else {
      AppendTitleCase(character, &out);
    }
    previous_cased = u_hasBinaryProperty(code, UCHAR_CASED);
  }
  return out;
}

std::string TitleFilter(absl::string_view s) {
  const auto is_separator = [](char32_t c) {
    return c == '-' || c == '(' || c == '{' || c == '[' || c == '<' || IsPySpace(c);
  };
  std::string out;
  for (size_t pos = 0; pos < s.size();) {
    size_t end = pos;
    const bool separator = is_separator(DecodeUtf8(s, pos).code);
    while (end < s.size() && is_separator(DecodeUtf8(s, end).code) == separator) end = Next(s, end);
    const size_t first = Next(s, pos);
    absl::StrAppend(&out, Upper(s.substr(pos, first - pos)), Lower(s.substr(first, end - first)));
    pos = end;
  }
  return out;
}

std::string HtmlEscape(absl::string_view s) {
  std::string out;
  for (const char c : s) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&#34;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

int64_t CountOccurrences(absl::string_view s, absl::string_view needle) {
  if (needle.empty()) return CharCount(s) + 1;
  int64_t count = 0;
  for (size_t at = s.find(needle); at != absl::string_view::npos; at = s.find(needle, at + needle.size()))
    ++count;
  return count;
}

std::string Replace(absl::string_view s, absl::string_view old_text, absl::string_view new_text,
                    int64_t max_count) {
  std::string out;
  size_t pos = 0;
  if (old_text.empty()) {
    for (; max_count != 0; --max_count) {
      absl::StrAppend(&out, new_text);
      if (pos >= s.size()) break;
      const size_t next = Next(s, pos);
      absl::StrAppend(&out, s.substr(pos, next - pos));
      pos = next;
    }
  } else {
    for (; max_count != 0; --max_count) {
      const size_t at = s.find(old_text, pos);
      if (at == absl::string_view::npos) break;
      absl::StrAppend(&out, s.substr(pos, at - pos), new_text);
      pos = at + old_text.size();
    }
  }
  absl::StrAppend(&out, s.substr(pos));
  return out;
}

std::string FloatRepr(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  char buffer[64];
  const auto end = std::to_chars(buffer, buffer + sizeof(buffer), value, std::chars_format::scientific).ptr;
  const absl::string_view text(buffer, static_cast<size_t>(end - buffer));
  const size_t e = text.find('e');
  const int exponent = std::atoi(std::string(text.substr(e + 1)).c_str());
  if (exponent < -4 || exponent >= 16) {
    return absl::StrCat(text.substr(0, e), "e", exponent < 0 ? "-" : "+", std::abs(exponent) < 10 ? "0" : "",
                        std::abs(exponent));
  }
  const auto fixed = std::to_chars(buffer, buffer + sizeof(buffer), value, std::chars_format::fixed).ptr;
  std::string out(buffer, fixed);
  if (out.find('.') == std::string::npos) out += ".0";
  return out;
}

std::optional<int64_t> ParseInt(absl::string_view text, int base) {
  text = Strip(text, std::nullopt, true, true);
  const bool negative = !text.empty() && text[0] == '-';
  if (!text.empty() && (text[0] == '-' || text[0] == '+')) text.remove_prefix(1);
  if (text.size() > 2 && text[0] == '0') {
    const char kind = absl::ascii_tolower(text[1]);
    const int prefix_base = kind == 'x' ? 16 : kind == 'o' ? 8 : kind == 'b' ? 2 : -1;
    if (prefix_base > 0 && (base == prefix_base || base == 0)) {
      base = prefix_base;
      text.remove_prefix(text[2] == '_' ? 3 : 2);
    }
  }
  if (base == 0) base = 10;
  std::string digits;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool between = i > 0 && i + 1 < text.size() && text[i - 1] != '_';
    if (text[i] == '_' && between) continue;
    digits += text[i];
  }
  if (digits.empty() || digits[0] == '-' || base < 2 || base > 36) return std::nullopt;
  int64_t value = 0;
  if (negative) digits.insert(0, "-");
  const auto [ptr, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value, base);
  if (error != std::errc() || ptr != digits.data() + digits.size()) return std::nullopt;
  return value;
}

std::optional<double> ParseFloat(absl::string_view text) {
  text = Strip(text, std::nullopt, true, true);
  double value = 0;
  const bool hexadecimal = text.find_first_of("xX") != absl::string_view::npos;
  if (hexadecimal || !absl::SimpleAtod(text, &value)) return std::nullopt;
  return value;
}

}  // namespace somnus::jinja
