#include <unicode/uchar.h>

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/utf8.h"
#include "text/jinja/builtins.h"
#include "text/jinja/format.h"
#include "text/jinja/text.h"

namespace somnus::jinja {
namespace {

using Result = absl::StatusOr<Value>;

Value Str(absl::string_view text) { return Value::String(std::string(text)); }

Result StringList(Interpreter* in, const std::vector<absl::string_view>& parts, bool tuple = false) {
  RETURN_IF_ERROR(in->Charge(static_cast<int64_t>(parts.size())));
  std::vector<Value> items;
  items.reserve(parts.size());
  for (const absl::string_view part : parts) items.push_back(Str(part));
  return Value::MakeList(std::move(items), tuple);
}

template <std::string (*kFunction)(absl::string_view)>
Result Mapped(Interpreter*, const Value& self, const Bound&) {
  return Value::String(kFunction(self.str()));
}

template <bool kRight>
Result SplitMethod(Interpreter* in, const Value& self, const Bound& args) {
  ASSIGN_OR_RETURN(const int64_t limit, IntegerArgument(args[1], -1));
  if (args[0] == nullptr || args[0]->is_none())
    return StringList(in, Split(self.str(), std::nullopt, limit, kRight));
  ASSIGN_OR_RETURN(const std::string separator, StringArgument(args[0], ""));
  if (separator.empty()) return absl::InvalidArgumentError("empty separator");
  return StringList(in, Split(self.str(), separator, limit, kRight));
}

Result SplitLinesMethod(Interpreter* in, const Value& self, const Bound& args) {
  return StringList(in, SplitLines(self.str(), args.Flag(0, false)));
}

template <bool kLeft, bool kRight>
Result StripMethod(Interpreter*, const Value& self, const Bound& args) {
  if (args[0] == nullptr || args[0]->is_none()) return Str(Strip(self.str(), std::nullopt, kLeft, kRight));
  ASSIGN_OR_RETURN(const std::string chars, StringArgument(args[0], ""));
  return Str(Strip(self.str(), chars, kLeft, kRight));
}

// Returns the part of `self` between the start and end arguments of find, count and startswith. `*start` is
// the index of the part's first character, or -1 when the start argument is beyond the end of the string.
absl::StatusOr<absl::string_view> Window(const Value& self, const Bound& args, int64_t* start) {
  const absl::string_view text = self.str();
  *start = 0;
  if (args[1] == nullptr && args[2] == nullptr) return text;
  const int64_t size = CharCount(text);
  ASSIGN_OR_RETURN(int64_t begin, IntegerArgument(args[1], 0));
  ASSIGN_OR_RETURN(int64_t end, IntegerArgument(args[2], size));
  if (begin < 0) begin = std::max<int64_t>(0, begin + size);
  if (end < 0) end = std::max<int64_t>(0, end + size);
  *start = begin > size || begin > std::min(end, size) ? -1 : begin;
  if (*start < 0) return absl::string_view();
  const size_t from = CharOffset(text, begin);
  return text.substr(from, CharOffset(text.substr(from), std::min(end, size) - begin));
}

template <bool kAtEnd>
Result Affix(Interpreter* in, const Value& self, const Bound& args) {
  int64_t start = 0;
  ASSIGN_OR_RETURN(const absl::string_view text, Window(self, args, &start));
  std::vector<Value> candidates = {*args[0]};
  if (args[0]->is_list() && args[0]->list().tuple) candidates = args[0]->list().items;
  for (const Value& candidate : candidates) {
    if (!candidate.is_string()) return TypeError("a string or a tuple of strings is needed, not", candidate);
    const bool found =
        kAtEnd ? absl::EndsWith(text, candidate.str()) : absl::StartsWith(text, candidate.str());
    if (found && start >= 0) return Value::Bool(true);
  }
  return Value::Bool(false);
}

template <bool kFromRight, bool kMustExist>
Result Find(Interpreter*, const Value& self, const Bound& args) {
  int64_t start = 0;
  ASSIGN_OR_RETURN(const absl::string_view text, Window(self, args, &start));
  ASSIGN_OR_RETURN(const std::string needle, StringArgument(args[0], ""));
  const size_t at = kFromRight ? text.rfind(needle) : text.find(needle);
  if (at != absl::string_view::npos && start >= 0) return Value::Int(start + CharCount(text.substr(0, at)));
  if (kMustExist) return absl::InvalidArgumentError("substring not found");
  return Value::Int(-1);
}

Result Count(Interpreter*, const Value& self, const Bound& args) {
  int64_t start = 0;
  ASSIGN_OR_RETURN(const absl::string_view text, Window(self, args, &start));
  ASSIGN_OR_RETURN(const std::string needle, StringArgument(args[0], ""));
  return Value::Int(start < 0 ? 0 : CountOccurrences(text, needle));
}

Result ReplaceMethod(Interpreter* in, const Value& self, const Bound& args) {
  if (!args[0]->is_string() || !args[1]->is_string())
    return absl::InvalidArgumentError("replace() needs strings");
  return in->CallFilter("replace", self, *args.raw);
}

Result JoinMethod(Interpreter* in, const Value& self, const Bound& args) {
  ASSIGN_OR_RETURN(const std::shared_ptr<const List> list, in->Iterate(*args[0]));
  std::string out;
  for (size_t i = 0; i < list->items.size(); ++i) {
    const Value& item = list->items[i];
    if (!item.is_string()) return TypeError("sequence item: expected str instance, got", item);
    RETURN_IF_ERROR(in->ChargeBytes(static_cast<int64_t>(self.str().size() + item.str().size())));
    RETURN_IF_ERROR(in->Charge(0));
    absl::StrAppend(&out, i > 0 ? self.str() : "", item.str());
  }
  return Value::String(std::move(out));
}

template <bool kSuffix>
Result RemoveAffix(Interpreter*, const Value& self, const Bound& args) {
  ASSIGN_OR_RETURN(const std::string affix, StringArgument(args[0], ""));
  absl::string_view text = self.str();
  if (kSuffix && absl::EndsWith(text, affix)) text.remove_suffix(affix.size());
  if (!kSuffix && absl::StartsWith(text, affix)) text.remove_prefix(affix.size());
  return Str(text);
}

template <bool kRight>
Result Partition(Interpreter* in, const Value& self, const Bound& args) {
  ASSIGN_OR_RETURN(const std::string separator, StringArgument(args[0], ""));
  if (separator.empty()) return absl::InvalidArgumentError("empty separator");
  const absl::string_view text = self.str();
  const size_t at = kRight ? text.rfind(separator) : text.find(separator);
  if (at == absl::string_view::npos) {
    return kRight ? StringList(in, {"", "", text}, true) : StringList(in, {text, "", ""}, true);
  }
  return StringList(in, {text.substr(0, at), separator, text.substr(at + separator.size())}, true);
}

// ljust, rjust and center put 0, 2 or 1 halves of the padding on the left.
template <int kLeftHalves>
Result Justify(Interpreter* in, const Value& self, const Bound& args) {
  ASSIGN_OR_RETURN(const int64_t width, IntegerArgument(args[0], 0));
  ASSIGN_OR_RETURN(const std::string fill, StringArgument(args[1], " "));
  if (CharCount(fill) != 1)
    return absl::InvalidArgumentError("the fill character must be exactly one character long");
  const int64_t missing = width - CharCount(self.str());
  if (missing <= 0) return self;
  RETURN_IF_ERROR(in->ChargeBytes(missing > (INT64_MAX >> 8) ? INT64_MAX : 4 * missing));
  // CPython rounds an odd margin this way.
  const int64_t left = kLeftHalves == 1 ? missing / 2 + (missing & width & 1) : kLeftHalves * missing / 2;
  std::string out;
  for (int64_t i = 0; i < left; ++i) out += fill;
  out += self.str();
  for (int64_t i = left; i < missing; ++i) out += fill;
  return Value::String(std::move(out));
}

Result ZFill(Interpreter* in, const Value& self, const Bound& args) {
  ASSIGN_OR_RETURN(const int64_t width, IntegerArgument(args[0], 0));
  const std::string& text = self.str();
  const int64_t missing = width - CharCount(text);
  if (missing <= 0) return self;
  RETURN_IF_ERROR(in->ChargeBytes(missing));
  const size_t sign = !text.empty() && (text[0] == '-' || text[0] == '+') ? 1 : 0;
  return Value::String(text.substr(0, sign) + std::string(static_cast<size_t>(missing), '0') +
                       text.substr(sign));
}

Result SwapCase(Interpreter*, const Value& self, const Bound&) {
  std::string out;
  for (const absl::string_view c : Characters(self.str())) {
    out += u_isUUppercase(static_cast<UChar32>(DecodeUtf8(c, 0).code)) ? Lower(c) : Upper(c);
  }
  return Value::String(std::move(out));
}

bool IsDecimal(char32_t c) { return u_charType(static_cast<UChar32>(c)) == U_DECIMAL_DIGIT_NUMBER; }
bool IsDigit(char32_t c) {
  const int type = u_getIntPropertyValue(static_cast<UChar32>(c), UCHAR_NUMERIC_TYPE);
  return type == U_NT_DECIMAL || type == U_NT_DIGIT;
}
bool IsNumericCharacter(char32_t c) {
  return u_getIntPropertyValue(static_cast<UChar32>(c), UCHAR_NUMERIC_TYPE) != U_NT_NONE;
}
bool IsAlpha(char32_t c) { return (U_GET_GC_MASK(static_cast<UChar32>(c)) & U_GC_L_MASK) != 0; }
bool IsAlnum(char32_t c) { return IsAlpha(c) || IsNumericCharacter(c); }
bool IsAsciiCharacter(char32_t c) { return c < 0x80; }

template <bool (*kPredicate)(char32_t), bool kOfEmpty>
Result All(Interpreter*, const Value& self, const Bound&) {
  const std::string& text = self.str();
  for (size_t pos = 0; pos < text.size();) {
    const Utf8Step step = DecodeUtf8(text, pos);
    if (!kPredicate(step.code)) return Value::Bool(false);
    pos += step.length;
  }
  return Value::Bool(kOfEmpty || !text.empty());
}

// isupper and islower: at least one character of this case, and no character of the opposite case.
template <bool kUpper>
Result IsCase(Interpreter*, const Value& self, const Bound&) {
  bool any = false;
  for (const absl::string_view c : Characters(self.str())) {
    const auto code = static_cast<UChar32>(DecodeUtf8(c, 0).code);
    const bool upper = u_isUUppercase(code) || u_istitle(code), lower = u_isULowercase(code);
    if (kUpper ? lower : upper) return Value::Bool(false);
    any = any || (kUpper ? upper : lower);
  }
  return Value::Bool(any);
}

absl::StatusOr<Value> FieldValue(Interpreter* in, absl::string_view name, const Args& args, size_t* next) {
  const size_t end = std::min(name.find_first_of(".["), name.size());
  if (end < name.size()) return absl::InvalidArgumentError("attributes in str.format are not supported");
  const auto index =
      name.empty() ? std::optional<int64_t>(static_cast<int64_t>((*next)++)) : ParseInt(name, 10);
  if (index) {
    if (*index < 0 || static_cast<size_t>(*index) >= args.positional.size()) {
      return absl::InvalidArgumentError("replacement index out of range for positional args tuple");
    }
    return args.positional[static_cast<size_t>(*index)];
  }
  for (const auto& [key, value] : args.named) {
    if (key == name) return value;
  }
  return absl::InvalidArgumentError(absl::StrCat("no argument '", name, "' for str.format"));
}

Result FormatMethod(Interpreter* in, const Value& self, const Bound& args) {
  const absl::string_view s = self.str();
  std::string out;
  size_t next = 0;
  for (size_t i = 0; i < s.size(); ++i) {
    if (s[i] != '{' && s[i] != '}') {
      out += s[i];
      continue;
    }
    if (i + 1 < s.size() && s[i + 1] == s[i]) {
      out += s[i++];
      continue;
    }
    const size_t close = s[i] == '{' ? s.find('}', i) : absl::string_view::npos;
    if (close == absl::string_view::npos)
      return absl::InvalidArgumentError("single brace in the format string");
    absl::string_view field = s.substr(i + 1, close - i - 1);
    i = close;
    const size_t colon = std::min(field.find(':'), field.size());
    const std::string spec(colon < field.size() ? field.substr(colon + 1) : "");
    field = field.substr(0, colon);
    const size_t bang = std::min(field.find('!'), field.size());
    ASSIGN_OR_RETURN(Value value, FieldValue(in, field.substr(0, bang), *args.raw, &next));
    RETURN_IF_ERROR(in->Charge(value.weight()));
    if (bang < field.size()) {
      ASSIGN_OR_RETURN(std::string text, field.substr(bang) == "!r" ? ToRepr(value) : ToStr(value));
      value = Value::String(std::move(text));
    }
    ASSIGN_OR_RETURN(const std::string text, FormatField(value, spec));
    RETURN_IF_ERROR(in->ChargeBytes(static_cast<int64_t>(text.size())));
    out += text;
  }
  return Value::String(std::move(out));
}

}  // namespace

const BuiltinTable& StringMethods() {
  static const auto* const table = new BuiltinTable{
      {"split", {SplitMethod<false>, "sep maxsplit"}},
      {"rsplit", {SplitMethod<true>, "sep maxsplit"}},
      {"splitlines", {SplitLinesMethod, "keepends"}},
      {"strip", {StripMethod<true, true>, "chars"}},
      {"lstrip", {StripMethod<true, false>, "chars"}},
      {"rstrip", {StripMethod<false, true>, "chars"}},
      {"startswith", {Affix<false>, "prefix! start end"}},
      {"endswith", {Affix<true>, "suffix! start end"}},
      {"find", {Find<false, false>, "sub! start end"}},
      {"rfind", {Find<true, false>, "sub! start end"}},
      {"index", {Find<false, true>, "sub! start end"}},
      {"rindex", {Find<true, true>, "sub! start end"}},
      {"count", {Count, "sub! start end"}},
      {"replace", {ReplaceMethod, "old! new! count"}},
      {"join", {JoinMethod, "iterable!"}},
      {"removeprefix", {RemoveAffix<false>, "prefix!"}},
      {"removesuffix", {RemoveAffix<true>, "suffix!"}},
      {"partition", {Partition<false>, "sep!"}},
      {"rpartition", {Partition<true>, "sep!"}},
      {"ljust", {Justify<0>, "width! fillchar"}},
      {"rjust", {Justify<2>, "width! fillchar"}},
      {"center", {Justify<1>, "width! fillchar"}},
      {"zfill", {ZFill, "width!"}},
      {"upper", {Mapped<Upper>, ""}},
      {"lower", {Mapped<Lower>, ""}},
      {"casefold", {Mapped<CaseFold>, ""}},
      {"capitalize", {Mapped<Capitalize>, ""}},
      {"title", {Mapped<TitleMethod>, ""}},
      {"swapcase", {SwapCase, ""}},
      {"isdigit", {All<IsDigit, false>, ""}},
      {"isdecimal", {All<IsDecimal, false>, ""}},
      {"isnumeric", {All<IsNumericCharacter, false>, ""}},
      {"isalpha", {All<IsAlpha, false>, ""}},
      {"isalnum", {All<IsAlnum, false>, ""}},
      {"isspace", {All<IsPySpace, false>, ""}},
      {"isascii", {All<IsAsciiCharacter, true>, ""}},
      {"isupper", {IsCase<true>, ""}},
      {"islower", {IsCase<false>, ""}},
      {"format", {FormatMethod, "*"}},
  };
  return *table;
}

}  // namespace somnus::jinja
