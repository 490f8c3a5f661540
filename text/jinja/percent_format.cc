#include <cmath>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "base/utf8.h"
#include "text/jinja/format.h"
#include "text/jinja/text.h"

namespace somnus::jinja {
namespace {

struct Field {
  char align = 0;  // '<', '>', '^', '='; 0: the default of the value's type
  std::string fill = " ";
  bool plus = false, space = false, alternate = false, comma = false;
  int64_t width = 0;
  int64_t precision = -1;
  char type = 0;
};

absl::Status BadFormat(absl::string_view reason) {
  return absl::InvalidArgumentError(absl::StrCat("bad format: ", reason));
}

absl::StatusOr<int64_t> TakeNumber(absl::string_view* s) {
  int64_t number = 0;
  while (!s->empty() && absl::ascii_isdigit((*s)[0])) {
    number = number * 10 + ((*s)[0] - '0');
    if (number > kMaxFieldWidth)
      return absl::ResourceExhaustedError("a format width or precision is too large");
    s->remove_prefix(1);
  }
  return number;
}

bool Take(absl::string_view* s, char c) {
  if (s->empty() || (*s)[0] != c) return false;
  s->remove_prefix(1);
  return true;
}

std::string Pad(const std::string& sign, const std::string& body, const Field& field, char default_align) {
  const int64_t missing = field.width - CharCount(sign) - CharCount(body);
  if (missing <= 0) return sign + body;
  const auto fill = [&](int64_t count) {
    std::string out;
    for (; count > 0; --count) out += field.fill;
    return out;
  };
  switch (field.align != 0 ? field.align : default_align) {
    case '<':
      return sign + body + fill(missing);
    case '^':
      return fill(missing / 2) + sign + body + fill(missing - missing / 2);
    case '=':
      return sign + fill(missing) + body;
    default:
      return fill(missing) + sign + body;
  }
}

std::string WithCommas(const std::string& digits) {
  const size_t whole = std::min(digits.find('.'), digits.size());
  std::string out;
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && i < whole && (whole - i) % 3 == 0) out += ',';
    out += digits[i];
  }
  return out;
}

std::string InBase(uint64_t value, unsigned base) {
  std::string out;
  do {
    out.insert(out.begin(), "0123456789abcdef"[value % base]);
    value /= base;
  } while (value != 0);
  return out;
}

absl::StatusOr<std::string> Number(const Value& value, const Field& field) {
  std::string sign, body;
  const bool integer_type =
      field.type != 0 && absl::string_view("dixXobu").find(field.type) != absl::string_view::npos;
  if (integer_type || (field.type == 0 && value.is_integral())) {
    if (!value.is_integral() && !std::isfinite(value.number()))
      return BadFormat("cannot convert to an integer");
    if (!value.is_integral() && std::fabs(value.number()) >= 9.2e18)
      return BadFormat("the number is too large");
    const int64_t number = value.is_integral() ? value.integer() : static_cast<int64_t>(value.number());
    if (number < 0) sign = "-";
    const uint64_t magnitude = number < 0 ? 0 - static_cast<uint64_t>(number) : static_cast<uint64_t>(number);
    const char kind = absl::ascii_tolower(field.type);
    body = InBase(magnitude, kind == 'x' ? 16 : kind == 'o' ? 8 : kind == 'b' ? 2 : 10);
    if (field.type == 'X') body = absl::AsciiStrToUpper(body);
    if (field.alternate && kind != 'd' && kind != 0) sign += std::string("0") + field.type;
  } else {
    double number = value.number();
    if (std::signbit(number) && !std::isnan(number)) sign = "-";
    number = std::fabs(number);
    const int precision = field.precision < 0 ? 6 : static_cast<int>(field.precision);
    switch (field.type) {
      case 'f':
      case 'F':
        body = absl::StrFormat("%.*f", precision, number);
        break;
      case 'e':
        body = absl::StrFormat("%.*e", precision, number);
        break;
      case 'E':
        body = absl::StrFormat("%.*E", precision, number);
        break;
      case 'g':
        body = absl::StrFormat("%.*g", precision, number);
        break;
      case 'G':
        body = absl::StrFormat("%.*G", precision, number);
        break;
      case '%':
        body = absl::StrFormat("%.*f%%", precision, number * 100);
        break;
      case 0:
        body = field.precision < 0 ? FloatRepr(number) : absl::StrFormat("%.*g", precision, number);
        break;
      default:
        return BadFormat("unknown type");
    }
  }
  if (field.comma) body = WithCommas(body);
  if (sign.empty() && (field.plus || field.space)) sign = field.plus ? "+" : " ";
  return Pad(sign, body, field, '>');
}

std::string Text(std::string text, const Field& field, char default_align) {
  if (field.precision >= 0) text.resize(CharOffset(text, field.precision));
  return Pad("", text, field, default_align);
}

// Parses one "%..." field; `s` starts after the percent sign and the mapping key.
absl::StatusOr<Field> ParsePercentField(absl::string_view* s) {
  Field field;
  bool zero = false;
  while (!s->empty()) {
    if (Take(s, '-')) {
      field.align = '<';
    } else if (Take(s, '0')) {
      zero = true;
    } else if (Take(s, '+')) {
      field.plus = true;
    } else if (Take(s, ' ')) {
      field.space = true;
    } else if (Take(s, '#')) {
      field.alternate = true;
    } else {
      break;
    }
  }
  ASSIGN_OR_RETURN(field.width, TakeNumber(s));
  if (Take(s, '.')) {
    ASSIGN_OR_RETURN(field.precision, TakeNumber(s));
  }
  if (s->empty()) return BadFormat("incomplete format");
  field.type = (*s)[0];
  s->remove_prefix(1);
  if (zero && field.align == 0 && field.type != 's' && field.type != 'r') {
    field.align = '=';
    field.fill = "0";
  }
  return field;
}

absl::StatusOr<std::string> PercentField(const Value& value, const Field& field) {
  if (field.type == 's' || field.type == 'r' || field.type == 'a') {
    ASSIGN_OR_RETURN(std::string text, field.type == 's' ? ToStr(value) : ToRepr(value));
    return Text(std::move(text), field, '>');
  }
  if (field.type == 'c' && value.is_string() && CharCount(value.str()) == 1)
    return Text(value.str(), field, '>');
  if (field.type == 'c' && value.is_integral() && value.integer() >= 0 && value.integer() <= 0x10FFFF) {
    std::string text;
    AppendUtf8(static_cast<char32_t>(value.integer()), &text);
    return Text(std::move(text), field, '>');
  }
  if (absl::string_view("diuxXofFeEgG").find(field.type) == absl::string_view::npos)
    return BadFormat("unknown type");
  if (!value.is_number()) return BadFormat(absl::StrCat("a number is required, not ", value.TypeName()));
  return Number(value, field);
}

}  // namespace

absl::StatusOr<std::string> PercentFormat(const std::string& format, const Value& argument) {
  std::string out;
  absl::string_view s = format;
  const bool tuple = argument.is_list() && argument.list().tuple;
  size_t used = 0;
  bool mapped = false;
  while (!s.empty()) {
    const size_t percent = std::min(s.find('%'), s.size());
    absl::StrAppend(&out, s.substr(0, percent));
    if (static_cast<int64_t>(out.size()) > kMaxTextBytes)
      return absl::ResourceExhaustedError("a text is too long");
    s.remove_prefix(percent);
    if (!Take(&s, '%')) break;
    if (Take(&s, '%')) {
      out += '%';
      continue;
    }
    const Value* value = nullptr;
    if (Take(&s, '(')) {
      const size_t close = s.find(')');
      if (close == absl::string_view::npos || !argument.is_dict())
        return BadFormat("format requires a mapping");
      value = argument.dict().Find(s.substr(0, close));
      if (value == nullptr) return BadFormat(absl::StrCat("no key '", s.substr(0, close), "'"));
      s.remove_prefix(close + 1);
      mapped = true;
    }
    ASSIGN_OR_RETURN(const Field field, ParsePercentField(&s));
    if (value == nullptr) {
      const size_t count = tuple ? argument.list().items.size() : 1;
      if (used >= count) return BadFormat("not enough arguments for format string");
      value = tuple ? &argument.list().items[used] : &argument;
      ++used;
    }
    ASSIGN_OR_RETURN(const std::string text, PercentField(*value, field));
    out += text;
  }
  const size_t available = tuple                                      ? argument.list().items.size()
                           : argument.is_dict() || argument.is_list() ? 0
                                                                      : 1;
  if (!mapped && used < available) return BadFormat("not all arguments converted during string formatting");
  return out;
}

absl::StatusOr<std::string> FormatField(const Value& value, const std::string& spec) {
  Field field;
  absl::string_view s = spec;
  const auto is_align = [](char c) { return c == '<' || c == '>' || c == '^' || c == '='; };
  const size_t first = s.empty() ? 0 : DecodeUtf8(s, 0).length;
  if (first > 0 && first < s.size() && is_align(s[first])) {
    field.fill = std::string(s.substr(0, first));
    field.align = s[first];
    s.remove_prefix(first + 1);
  } else if (!s.empty() && is_align(s[0])) {
    field.align = s[0];
    s.remove_prefix(1);
  }
  if (Take(&s, '+')) {
    field.plus = true;
  } else if (Take(&s, ' ')) {
    field.space = true;
  } else {
    Take(&s, '-');
  }
  field.alternate = Take(&s, '#');
  if (Take(&s, '0') && field.align == 0) {
    field.align = '=';
    field.fill = "0";
  }
  ASSIGN_OR_RETURN(field.width, TakeNumber(&s));
  field.comma = Take(&s, ',');
  if (Take(&s, '.')) {
    ASSIGN_OR_RETURN(field.precision, TakeNumber(&s));
  }
  if (!s.empty()) {
    field.type = s[0];
    s.remove_prefix(1);
  }
  if (!s.empty()) return BadFormat("invalid format specifier");
  const bool numeric = value.is_number() && (!value.is_bool() || (field.type != 0 && field.type != 's'));
  if (numeric && field.type != 's') return Number(value, field);
  if (field.type != 0 && field.type != 's') return BadFormat("unknown format code for this type");
  ASSIGN_OR_RETURN(std::string text, ToStr(value));
  return Text(std::move(text), field, '<');
}

}  // namespace somnus::jinja
