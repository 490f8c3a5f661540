#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "text/jinja/builtins.h"
#include "text/jinja/format.h"
#include "text/jinja/text.h"

namespace somnus::jinja {
namespace {

using Result = absl::StatusOr<Value>;

template <std::string (*kFunction)(absl::string_view)>
Result OnText(Interpreter* in, const Value& self, const Bound&) {
  ASSIGN_OR_RETURN(const std::string text, in->Text(self));
  return Value::String(kFunction(text));
}

Result ToJsonFilter(Interpreter* in, const Value& self, const Bound& args) {
  RETURN_IF_ERROR(in->Charge(self.weight()));
  JsonOptions options;
  options.ensure_ascii = args.Flag(0, false);
  options.sort_keys = args.Flag(3, false);
  if (args[1] != nullptr && !args[1]->is_none()) {
    options.indented = true;
    options.item_separator.assign(1, ',');
    if (args[1]->is_string()) {
      options.indent = args[1]->str();
    } else {
      ASSIGN_OR_RETURN(const int64_t width, IntegerArgument(args[1], 0));
      if (width > 64) return absl::ResourceExhaustedError("the indent is too wide");
      options.indent.assign(static_cast<size_t>(std::max<int64_t>(width, 0)), ' ');
    }
  }
  if (args[2] != nullptr && args[2]->is_list()) {
    const auto& parts = args[2]->list().items;
    if (parts.size() != 2 || !parts[0].is_string() || !parts[1].is_string()) {
      return absl::InvalidArgumentError("separators must be two strings");
    }
    options.item_separator = parts[0].str();
    options.key_separator = parts[1].str();
  }
  const auto overhead = static_cast<int64_t>(options.indent.size() * 8 + options.item_separator.size());
  RETURN_IF_ERROR(in->Charge(self.weight() * (overhead / 64)));
  ASSIGN_OR_RETURN(std::string text, ToJson(self, options));
  return Value::String(std::move(text));
}

Result Trim(Interpreter* in, const Value& self, const Bound& args) {
  ASSIGN_OR_RETURN(const std::string text, in->Text(self));
  if (args[0] == nullptr || args[0]->is_none())
    return Value::String(std::string(Strip(text, std::nullopt, true, true)));
  ASSIGN_OR_RETURN(const std::string chars, StringArgument(args[0], ""));
  return Value::String(std::string(Strip(text, chars, true, true)));
}

Result ReplaceFilter(Interpreter* in, const Value& self, const Bound& args) {
  ASSIGN_OR_RETURN(const std::string text, in->Text(self));
  ASSIGN_OR_RETURN(const std::string old_text, in->Text(*args[0]));
  ASSIGN_OR_RETURN(const std::string new_text, in->Text(*args[1]));
  ASSIGN_OR_RETURN(const int64_t count, IntegerArgument(args[2], -1));
  int64_t hits = CountOccurrences(text, old_text);
  if (count >= 0) hits = std::min(hits, count);
  int64_t bytes = 0;
  if (__builtin_mul_overflow(hits, static_cast<int64_t>(new_text.size()), &bytes)) bytes = INT64_MAX;
  RETURN_IF_ERROR(in->ChargeBytes(bytes));
  return Value::String(Replace(text, old_text, new_text, count));
}

Result Default(Interpreter*, const Value& self, const Bound& args) {
  const bool use = self.is_undefined() || (args.Flag(1, false) && !self.Truthy());
  if (!use) return self;
  return args[0] != nullptr ? *args[0] : Value::String("");
}

Result Indent(Interpreter* in, const Value& self, const Bound& args) {
  ASSIGN_OR_RETURN(std::string text, in->Text(self));
  std::string indent;
  if (args[0] != nullptr && args[0]->is_string()) {
    indent = args[0]->str();
  } else {
    ASSIGN_OR_RETURN(const int64_t width, IntegerArgument(args[0], 4));
    if (width > kMaxFieldWidth) return absl::ResourceExhaustedError("the indent is too wide");
    indent.assign(static_cast<size_t>(std::max<int64_t>(width, 0)), ' ');
  }
  const bool first = args.Flag(1, false), blank = args.Flag(2, false);
  text += '\n';  // SplitLines would drop a last, empty line
  const std::vector<absl::string_view> lines = SplitLines(text, false);
  RETURN_IF_ERROR(in->Charge(static_cast<int64_t>(lines.size() * (indent.size() / 64 + 1))));
  std::string out = first ? indent : "";
  for (size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) absl::StrAppend(&out, "\n", blank || !lines[i].empty() ? indent : "");
    absl::StrAppend(&out, lines[i]);
  }
  return Value::String(std::move(out));
}

Result Format(Interpreter* in, const Value& self, const Bound& args) {
  ASSIGN_OR_RETURN(const std::string format, in->Text(self));
  Dict named;
  for (const auto& [name, value] : args.raw->named) named.Set(Value::String(name), value);
  if (!args.raw->named.empty() && !args.raw->positional.empty()) {
    return absl::InvalidArgumentError("can't handle positional and keyword arguments at the same time");
  }
  ASSIGN_OR_RETURN(const Value argument, args.raw->named.empty() ? Value::MakeList(args.raw->positional, true)
                                                                 : Value::MakeDict(std::move(named)));
  return in->Binary(Operator::kMod, Value::String(format), argument);
}

Result Center(Interpreter* in, const Value& self, const Bound& args) {
  ASSIGN_OR_RETURN(std::string text, in->Text(self));
  ASSIGN_OR_RETURN(const int64_t width, IntegerArgument(args[0], 80));
  return CallMethod(in, Value::String(std::move(text)), "center", Args{{Value::Int(width)}, {}});
}

Result WordCount(Interpreter* in, const Value& self, const Bound&) {
  ASSIGN_OR_RETURN(const std::string text, in->Text(self));
  int64_t count = 0;
  bool inside = false;
  for (const absl::string_view c : Characters(text)) {
    const bool word = (c[0] & 0x80) || std::isalnum(static_cast<unsigned char>(c[0])) || c[0] == '_';
    count += word && !inside;
    inside = word;
  }
  return Value::Int(count);
}

Result String(Interpreter* in, const Value& self, const Bound&) {
  if (self.is_string()) return self;
  ASSIGN_OR_RETURN(std::string text, in->Text(self));
  return Value::String(std::move(text));
}

}  // namespace

const BuiltinTable& TextFilters() {
  static const auto* const table = new BuiltinTable{
      {"tojson", {ToJsonFilter, "ensure_ascii indent separators sort_keys"}},
      {"trim", {Trim, "chars"}},
      {"upper", {OnText<Upper>, ""}},
      {"lower", {OnText<Lower>, ""}},
      {"capitalize", {OnText<Capitalize>, ""}},
      {"title", {OnText<TitleFilter>, ""}},
      {"escape", {OnText<HtmlEscape>, ""}},
      {"e", {OnText<HtmlEscape>, ""}},
      {"forceescape", {OnText<HtmlEscape>, ""}},
      {"string", {String, ""}},
      {"safe", {String, ""}},
      {"replace", {ReplaceFilter, "old! new! count"}},
      {"default", {Default, "default_value boolean"}},
      {"d", {Default, "default_value boolean"}},
      {"indent", {Indent, "width first blank"}},
      {"format", {Format, "*"}},
      {"center", {Center, "width"}},
      {"wordcount", {WordCount, ""}},
  };
  return *table;
}

}  // namespace somnus::jinja
