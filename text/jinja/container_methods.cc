#include "base/status_macros.h"
#include "text/jinja/builtins.h"

namespace somnus::jinja {
namespace {

using Result = absl::StatusOr<Value>;

Result ChargeItems(Interpreter* in, const Value& self) {
  RETURN_IF_ERROR(in->Charge(static_cast<int64_t>(self.dict().items().size())));
  return self;
}

Result Keys(Interpreter* in, const Value& self, const Bound&) {
  RETURN_IF_ERROR(ChargeItems(in, self).status());
  std::vector<Value> keys;
  for (const auto& item : self.dict().items()) keys.push_back(item.first);
  return Value::MakeList(std::move(keys));
}

Result Values(Interpreter* in, const Value& self, const Bound&) {
  RETURN_IF_ERROR(ChargeItems(in, self).status());
  std::vector<Value> values;
  for (const auto& item : self.dict().items()) values.push_back(item.second);
  return Value::MakeList(std::move(values));
}

Result Items(Interpreter* in, const Value& self, const Bound&) {
  RETURN_IF_ERROR(ChargeItems(in, self).status());
  std::vector<Value> pairs;
  for (const auto& [key, value] : self.dict().items()) {
    ASSIGN_OR_RETURN(Value pair, Value::MakeList({key, value}, true));
    pairs.push_back(std::move(pair));
  }
  return Value::MakeList(std::move(pairs));
}

Result Get(Interpreter* in, const Value& self, const Bound& args) {
  RETURN_IF_ERROR(CheckHashable(*args[0]));
  RETURN_IF_ERROR(in->Charge(args[0]->weight()));
  if (const Value* value = self.dict().Find(*args[0])) return *value;
  return args[1] != nullptr ? *args[1] : Value::OfNone();
}

Result Copy(Interpreter*, const Value& self, const Bound&) { return self; }

Result IndexOf(Interpreter* in, const Value& self, const Bound& args) {
  const auto& items = self.list().items;
  for (size_t i = 0; i < items.size(); ++i) {
    ASSIGN_OR_RETURN(const bool equal, in->CheckedEquals(items[i], *args[0]));
    if (equal) return Value::Int(static_cast<int64_t>(i));
  }
  return absl::InvalidArgumentError("the value is not in the list");
}

Result CountOf(Interpreter* in, const Value& self, const Bound& args) {
  int64_t count = 0;
  for (const Value& item : self.list().items) {
    ASSIGN_OR_RETURN(const bool equal, in->CheckedEquals(item, *args[0]));
    count += equal;
  }
  return Value::Int(count);
}

Result Cycle(Interpreter*, const Value& self, const Bound& args) {
  const auto& choices = args.raw->positional;
  if (choices.empty()) return absl::InvalidArgumentError("no items for cycling given");
  const auto* loop = self.shared<LoopState>();
  return choices[static_cast<size_t>((*loop)->index0) % choices.size()];
}

Result Changed(Interpreter* in, const Value& self, const Bound& args) {
  LoopState& loop = **self.shared<LoopState>();
  const auto& now = args.raw->positional;
  bool changed = !loop.changed_called || now.size() != loop.last_changed.size();
  for (size_t i = 0; !changed && i < now.size(); ++i) {
    ASSIGN_OR_RETURN(const bool equal, in->CheckedEquals(now[i], loop.last_changed[i]));
    changed = !equal;
  }
  loop.changed_called = true;
  loop.last_changed = now;
  return Value::Bool(changed);
}

}  // namespace

const BuiltinTable& ContainerMethods(const Value& self) {
  static const auto* const none = new BuiltinTable{};
  static const auto* const dict = new BuiltinTable{{"keys", {Keys, ""}},
                                                   {"values", {Values, ""}},
                                                   {"items", {Items, ""}},
                                                   {"get", {Get, "key! default"}},
                                                   {"copy", {Copy, ""}}};
  static const auto* const list =
      new BuiltinTable{{"index", {IndexOf, "value!"}}, {"count", {CountOf, "value!"}}, {"copy", {Copy, ""}}};
  static const auto* const loop = new BuiltinTable{{"cycle", {Cycle, "*"}}, {"changed", {Changed, "*"}}};
  if (self.is_dict()) return *dict;
  if (self.is_list()) return *list;
  return self.shared<LoopState>() != nullptr ? *loop : *none;
}

}  // namespace somnus::jinja
