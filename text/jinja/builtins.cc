#include "text/jinja/builtins.h"

#include <algorithm>
#include <ctime>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/check.h"
#include "base/status_macros.h"

namespace somnus::jinja {
namespace {

constexpr int64_t kMaxRange = 100'000;  // as in Jinja's sandbox

struct Parameter {
  absl::string_view name;
  bool required;
};

std::vector<Parameter> ParseParameters(absl::string_view text) {
  std::vector<Parameter> out;
  for (absl::string_view name : absl::StrSplit(text, ' ', absl::SkipEmpty())) {
    const bool required = name.back() == '!';
    if (required) name.remove_suffix(1);
    out.push_back({name, required});
  }
  return out;
}

absl::StatusOr<Bound> Bind(absl::string_view function, const char* parameters, const Args& args) {
  Bound bound;
  bound.raw = &args;
  if (absl::string_view(parameters) == "*") return bound;
  const std::vector<Parameter> names = ParseParameters(parameters);
  bound.slots.resize(names.size(), nullptr);
  if (args.positional.size() > names.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat(function, "() takes at most ", names.size(), " arguments"));
  }
  for (size_t i = 0; i < args.positional.size(); ++i) bound.slots[i] = &args.positional[i];
  for (const auto& [name, value] : args.named) {
    size_t i = 0;
    while (i < names.size() && names[i].name != name) ++i;
    if (i == names.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat(function, "() got an unexpected keyword argument '", name, "'"));
    }
    bound.slots[i] = &value;
  }
  for (size_t i = 0; i < names.size(); ++i) {
    if (names[i].required && bound.slots[i] == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat(function, "() lacks the argument '", names[i].name, "'"));
    }
  }
  return bound;
}

absl::StatusOr<Value> RaiseException(Interpreter* in, const Value&, const Bound& args) {
  ASSIGN_OR_RETURN(const std::string message, in->Text(*args[0]));
  in->SetRaised();
  return absl::InvalidArgumentError(message);
}

absl::StatusOr<Value> StrftimeNow(Interpreter* in, const Value&, const Bound& args) {
  ASSIGN_OR_RETURN(const std::string format, StringArgument(args[0], ""));
  if (format.size() > 256) return absl::ResourceExhaustedError("the time format is too long");
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  char buffer[8192];
  return Value::String(std::string(buffer, std::strftime(buffer, sizeof(buffer), format.c_str(), &local)));
}

absl::StatusOr<Value> Range(Interpreter* in, const Value&, const Bound& args) {
  for (size_t i = 0; i < 3; ++i) {
    if (args[i] != nullptr && !args[i]->is_integral())
      return TypeError("range() needs integers, not", *args[i]);
  }
  const bool one = args[1] == nullptr;
  const int64_t start = one ? 0 : args[0]->integer(), stop = one ? args[0]->integer() : args[1]->integer();
  const int64_t step = args[2] != nullptr ? args[2]->integer() : 1;
  if (step == 0) return absl::InvalidArgumentError("range() arg 3 must not be zero");
  const __int128 span = static_cast<__int128>(stop) - start;
  const __int128 count = (span > 0) == (step > 0) ? (span + step + (step > 0 ? -1 : 1)) / step : 0;
  if (count > kMaxRange) return absl::ResourceExhaustedError("range() is too long");
  RETURN_IF_ERROR(in->Charge(static_cast<int64_t>(count)));
  std::vector<Value> items;
  for (int64_t i = 0; i < static_cast<int64_t>(count); ++i) items.push_back(Value::Int(start + i * step));
  return Value::MakeList(std::move(items));
}

// Arguments of dict() and namespace(): names with values, a dict, or both.
absl::StatusOr<Dict> DictFromArgs(const Args& args) {
  Dict dict;
  for (const Value& value : args.positional) {
    if (!value.is_dict()) return TypeError("a dict is needed, not", value);
    for (const auto& [key, item] : value.dict().items()) dict.Set(key, item);
  }
  for (const auto& [name, value] : args.named) dict.Set(Value::String(name), value);
  return dict;
}

absl::StatusOr<Value> MakeDictFunction(Interpreter* in, const Value&, const Bound& args) {
  for (const Value& value : args.raw->positional) RETURN_IF_ERROR(in->Charge(value.weight()));
  ASSIGN_OR_RETURN(Dict dict, DictFromArgs(*args.raw));
  return Value::MakeDict(std::move(dict));
}

absl::StatusOr<Value> NamespaceFunction(Interpreter* in, const Value&, const Bound& args) {
  for (const Value& value : args.raw->positional) RETURN_IF_ERROR(in->Charge(value.weight()));
  ASSIGN_OR_RETURN(Dict dict, DictFromArgs(*args.raw));
  return in->MakeNamespace(std::move(dict));
}

const BuiltinTable& Globals() {
  static const auto* const table = new BuiltinTable{
      {"raise_exception", {RaiseException, "message!"}},
      {"strftime_now", {StrftimeNow, "format!"}},
      {"range", {Range, "start! stop step"}},
      {"dict", {MakeDictFunction, "*"}},
      {"namespace", {NamespaceFunction, "*"}},
  };
  return *table;
}

// Jinja's sandbox hides methods that change the object.
bool IsForbiddenMethod(const Value& object, absl::string_view name) {
  static constexpr absl::string_view kList[] = {"append", "clear",  "extend",  "insert",
                                                "pop",    "remove", "reverse", "sort"};
  static constexpr absl::string_view kDict[] = {"clear", "pop", "popitem", "setdefault", "update"};
  const auto contains = [&](const auto& names) {
    return std::find(std::begin(names), std::end(names), name) != std::end(names);
  };
  return (object.is_list() && !object.list().tuple && contains(kList)) ||
         (object.is_dict() && contains(kDict));
}

const BuiltinTable& MethodsOf(const Value& object) {
  return object.is_string() ? StringMethods() : ContainerMethods(object);
}

}  // namespace

BuiltinTable::BuiltinTable(std::initializer_list<Entry> entries) : entries_(entries) {
  std::sort(entries_.begin(), entries_.end(),
            [](const Entry& a, const Entry& b) { return a.first < b.first; });
}

const Builtin* BuiltinTable::Find(absl::string_view name) const {
  const auto at =
      std::lower_bound(entries_.begin(), entries_.end(), name,
                       [](const Entry& entry, absl::string_view wanted) { return entry.first < wanted; });
  return at != entries_.end() && at->first == name ? &at->second : nullptr;
}

absl::StatusOr<Value> Invoke(Interpreter* in, absl::string_view name, const Builtin& builtin,
                             const Value& self, const Args& args) {
  ASSIGN_OR_RETURN(const Bound bound, Bind(name, builtin.parameters, args));
  if (self.is_string()) RETURN_IF_ERROR(in->ChargeBytes(static_cast<int64_t>(self.str().size())));
  ASSIGN_OR_RETURN(Value result, builtin.function(in, self, bound));
  if (result.is_string()) RETURN_IF_ERROR(in->ChargeBytes(static_cast<int64_t>(result.str().size())));
  return result;
}

absl::StatusOr<Value> Interpreter::CallFilter(absl::string_view name, const Value& input, const Args& args) {
  for (const BuiltinTable* table : {&TextFilters(), &NumberFilters(), &SequenceFilters()}) {
    if (const Builtin* filter = table->Find(name)) return Invoke(this, name, *filter, input, args);
  }
  return absl::InvalidArgumentError(absl::StrCat("no filter named '", name, "'"));
}

absl::StatusOr<bool> Interpreter::CallTest(absl::string_view name, const Value& input, const Args& args) {
  const Builtin* test = Tests().Find(name);
  if (test == nullptr) return absl::InvalidArgumentError(absl::StrCat("no test named '", name, "'"));
  ASSIGN_OR_RETURN(const Value result, Invoke(this, name, *test, input, args));
  return result.Truthy();
}

bool IsGlobalFunction(absl::string_view name) { return Globals().Find(name) != nullptr; }

absl::StatusOr<Value> CallGlobal(Interpreter* in, absl::string_view name, const Args& args) {
  const Builtin* function = Globals().Find(name);
  SOMNUS_CHECK(function != nullptr);
  return Invoke(in, name, *function, Value(), args);
}

bool HasMethod(const Value& object, absl::string_view name) {
  return IsForbiddenMethod(object, name) || MethodsOf(object).Find(name) != nullptr;
}

absl::StatusOr<Value> CallMethod(Interpreter* in, const Value& self, absl::string_view name,
                                 const Args& args) {
  if (IsForbiddenMethod(self, name)) {
    return absl::InvalidArgumentError(
        absl::StrCat("access to attribute '", name, "' of '", self.TypeName(), "' object is unsafe"));
  }
  const Builtin* method = MethodsOf(self).Find(name);
  SOMNUS_CHECK(method != nullptr);
  return Invoke(in, name, *method, self, args);
}

absl::StatusOr<Value> LoopAttribute(const LoopState& loop, absl::string_view name) {
  const auto& items = loop.items->items;
  const auto size = static_cast<int64_t>(items.size());
  const int64_t i = loop.index0;
  if (name == "index0") return Value::Int(i);
  if (name == "index") return Value::Int(i + 1);
  if (name == "first") return Value::Bool(i == 0);
  if (name == "last") return Value::Bool(i + 1 == size);
  if (name == "length") return Value::Int(size);
  if (name == "revindex") return Value::Int(size - i);
  if (name == "revindex0") return Value::Int(size - i - 1);
  if (name == "depth") return Value::Int(loop.depth0 + 1);
  if (name == "depth0") return Value::Int(loop.depth0);
  if (name == "previtem" && i > 0 && i <= size) return items[i - 1];
  if (name == "nextitem" && i + 1 < size) return items[i + 1];
  return Value(Value::Variant(Undefined{std::string(name)}));
}

absl::Status CheckHashable(const Value& key) {
  if (key.is_dict() || (key.is_list() && !key.list().tuple)) return TypeError("unhashable type:", key);
  if (key.is_list()) {
    for (const Value& item : key.list().items) RETURN_IF_ERROR(CheckHashable(item));
  }
  return absl::OkStatus();
}

absl::StatusOr<int64_t> IntegerArgument(const Value* value, int64_t otherwise) {
  if (value == nullptr || value->is_none()) return otherwise;
  if (!value->is_integral()) return TypeError("an integer is needed, not", *value);
  return value->integer();
}

absl::StatusOr<std::string> StringArgument(const Value* value, absl::string_view otherwise) {
  if (value == nullptr) return std::string(otherwise);
  if (!value->is_string()) return TypeError("a string is needed, not", *value);
  return value->str();
}

}  // namespace somnus::jinja
