#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "text/jinja/builtins.h"
#include "text/jinja/text.h"

namespace somnus::jinja {
namespace {

using Result = absl::StatusOr<Value>;
using Items = std::vector<Value>;

absl::StatusOr<Items> ItemsOf(Interpreter* in, const Value& value) {
  ASSIGN_OR_RETURN(const std::shared_ptr<const List> list, in->Iterate(value));
  RETURN_IF_ERROR(in->Charge(static_cast<int64_t>(list->items.size())));
  return list->items;
}

// Looks up a path such as "a.b.0", one item after the other; a null `path` returns the value itself.
Result Attribute(Interpreter* in, Value value, const Value* path) {
  if (path == nullptr || path->is_none()) return value;
  if (path->is_integral()) return in->GetItem(value, *path);
  ASSIGN_OR_RETURN(const std::string text, StringArgument(path, ""));
  for (const absl::string_view part : absl::StrSplit(text, '.')) {
    int64_t index = 0;
    const bool number = !part.empty() && absl::ascii_isdigit(part[0]) && absl::SimpleAtoi(part, &index);
    ASSIGN_OR_RETURN(value,
                     in->GetItem(value, number ? Value::Int(index) : Value::String(std::string(part))));
  }
  return value;
}

// Returns the keys that sort, unique, min and max compare: strings are compared without case by default.
absl::StatusOr<std::vector<Value>> SortKeys(Interpreter* in, const Items& items, const Value* attribute,
                                            bool case_sensitive) {
  std::vector<Value> keys;
  for (const Value& item : items) {
    ASSIGN_OR_RETURN(Value key, Attribute(in, item, attribute));
    RETURN_IF_ERROR(in->Charge(key.weight()));
    if (key.is_string() && !case_sensitive) key = Value::String(Lower(key.str()));
    keys.push_back(std::move(key));
  }
  return keys;
}

// Returns positions in ascending order of key; equal keys stay in order. InvalidArgument names the first pair
// that cannot be compared.
absl::StatusOr<std::vector<size_t>> SortedOrder(Interpreter* in, const std::vector<Value>& keys,
                                                bool reverse) {
  std::vector<size_t> order(keys.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  absl::Status status;
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    if (!status.ok()) return false;
    const Value &left = keys[reverse ? b : a], &right = keys[reverse ? a : b];
    status = in->Charge(std::min(left.weight(), right.weight()));
    if (!status.ok()) return false;
    const absl::StatusOr<int> compared = Compare(left, right);
    status = compared.status();
    return compared.ok() && *compared < 0;
  });
  RETURN_IF_ERROR(status);
  return order;
}

Result Sort(Interpreter* in, const Value& self, const Bound& args) {
  ASSIGN_OR_RETURN(const Items items, ItemsOf(in, self));
  ASSIGN_OR_RETURN(const std::vector<Value> keys, SortKeys(in, items, args[2], args.Flag(1, false)));
  ASSIGN_OR_RETURN(const std::vector<size_t> order, SortedOrder(in, keys, args.Flag(0, false)));
  Items sorted;
  for (const size_t i : order) sorted.push_back(items[i]);
  return Value::MakeList(std::move(sorted));
}

Result DictSort(Interpreter* in, const Value& self, const Bound& args) {
  if (!self.is_dict()) return TypeError("dictsort needs a dict, not", self);
  ASSIGN_OR_RETURN(const std::string by, StringArgument(args[1], "key"));
  if (by != "key" && by != "value") return absl::InvalidArgumentError("dictsort by key or value");
  Items pairs;
  for (const auto& [key, value] : self.dict().items()) {
    ASSIGN_OR_RETURN(Value pair, Value::MakeList({key, value}, true));
    pairs.push_back(std::move(pair));
  }
  const Value position = Value::Int(by == "key" ? 0 : 1);
  ASSIGN_OR_RETURN(const std::vector<Value> keys, SortKeys(in, pairs, &position, args.Flag(0, false)));
  ASSIGN_OR_RETURN(const std::vector<size_t> order, SortedOrder(in, keys, args.Flag(2, false)));
  Items sorted;
  for (const size_t i : order) sorted.push_back(pairs[i]);
  return Value::MakeList(std::move(sorted));
}

Result Unique(Interpreter* in, const Value& self, const Bound& args) {
  ASSIGN_OR_RETURN(const Items items, ItemsOf(in, self));
  ASSIGN_OR_RETURN(const std::vector<Value> keys, SortKeys(in, items, args[1], args.Flag(0, false)));
  Dict seen;
  Items kept;
  for (size_t i = 0; i < items.size(); ++i) {
    RETURN_IF_ERROR(CheckHashable(keys[i]));
    RETURN_IF_ERROR(in->Charge(keys[i].weight()));
    if (seen.Find(keys[i]) != nullptr) continue;
    seen.Set(keys[i], Value::OfNone());
    kept.push_back(items[i]);
  }
  return Value::MakeList(std::move(kept));
}

template <int kSign>
Result Extreme(Interpreter* in, const Value& self, const Bound& args) {
  ASSIGN_OR_RETURN(const Items items, ItemsOf(in, self));
  ASSIGN_OR_RETURN(const std::vector<Value> keys, SortKeys(in, items, args[1], args.Flag(0, false)));
  if (items.empty()) return Value(Value::Variant(Undefined{"an item of an empty sequence"}));
  size_t best = 0;
  for (size_t i = 1; i < items.size(); ++i) {
    ASSIGN_OR_RETURN(const int order, Compare(keys[i], keys[best]));
    if (order * kSign > 0) best = i;
  }
  return items[best];
}

Result Sum(Interpreter* in, const Value& self, const Bound& args) {
  ASSIGN_OR_RETURN(const Items items, ItemsOf(in, self));
  Value total = args[1] != nullptr ? *args[1] : Value::Int(0);
  for (const Value& item : items) {
    ASSIGN_OR_RETURN(const Value value, Attribute(in, item, args[0]));
    ASSIGN_OR_RETURN(total, in->Binary(Operator::kAdd, total, value));
  }
  return total;
}

Result Length(Interpreter* in, const Value& self, const Bound&) {
  if (self.is_string()) return Value::Int(CharCount(self.str()));
  if (self.is_list()) return Value::Int(static_cast<int64_t>(self.list().items.size()));
  if (self.is_dict()) return Value::Int(static_cast<int64_t>(self.dict().items().size()));
  if (self.is_undefined()) return Value::Int(0);
  return TypeError("no length: object of type", self);
}

Result First(Interpreter* in, const Value& self, const Bound&) {
  ASSIGN_OR_RETURN(const std::shared_ptr<const List> list, in->Iterate(self));
  return list->items.empty() ? Value(Value::Variant(Undefined{"an item of an empty sequence"}))
                             : list->items.front();
}

Result Last(Interpreter* in, const Value& self, const Bound&) {
  ASSIGN_OR_RETURN(const std::shared_ptr<const List> list, in->Iterate(self));
  return list->items.empty() ? Value(Value::Variant(Undefined{"an item of an empty sequence"}))
                             : list->items.back();
}

Result Join(Interpreter* in, const Value& self, const Bound& args) {
  ASSIGN_OR_RETURN(const Items items, ItemsOf(in, self));
  std::string separator;
  if (args[0] != nullptr) {
    ASSIGN_OR_RETURN(separator, in->Text(*args[0]));
  }
  std::string out;
  for (size_t i = 0; i < items.size(); ++i) {
    ASSIGN_OR_RETURN(const Value item, Attribute(in, items[i], args[1]));
    ASSIGN_OR_RETURN(const std::string text, in->Text(item));
    RETURN_IF_ERROR(in->ChargeBytes(static_cast<int64_t>(separator.size())));
    absl::StrAppend(&out, i > 0 ? separator : "", text);
  }
  return Value::String(std::move(out));
}

Result ListFilter(Interpreter* in, const Value& self, const Bound&) {
  ASSIGN_OR_RETURN(Items items, ItemsOf(in, self));
  return Value::MakeList(std::move(items));
}

Result Reverse(Interpreter* in, const Value& self, const Bound&) {
  ASSIGN_OR_RETURN(Items items, ItemsOf(in, self));
  std::reverse(items.begin(), items.end());
  if (!self.is_string()) return Value::MakeList(std::move(items));
  std::string text;
  for (const Value& item : items) text += item.str();
  return Value::String(std::move(text));
}

Result ItemsFilter(Interpreter* in, const Value& self, const Bound&) {
  if (self.is_undefined()) return Value::MakeList({});
  if (!self.is_dict()) return TypeError("can only get item pairs from a mapping, not", self);
  return CallMethod(in, self, "items", {});
}

Result Batch(Interpreter* in, const Value& self, const Bound& args) {
  ASSIGN_OR_RETURN(const Items items, ItemsOf(in, self));
  ASSIGN_OR_RETURN(const int64_t size, IntegerArgument(args[0], 1));
  if (size < 1) return absl::InvalidArgumentError("batch size must be positive");
  Items batches, current;
  const auto flush = [&]() -> absl::Status {
    ASSIGN_OR_RETURN(Value batch, Value::MakeList(std::move(current)));
    current.clear();
    batches.push_back(std::move(batch));
    return absl::OkStatus();
  };
  for (const Value& item : items) {
    if (static_cast<int64_t>(current.size()) == size) RETURN_IF_ERROR(flush());
    current.push_back(item);
  }
  if (!current.empty() && args[1] != nullptr && !args[1]->is_none()) {
    RETURN_IF_ERROR(in->Charge(size));
    current.resize(static_cast<size_t>(size), *args[1]);
  }
  if (!current.empty()) RETURN_IF_ERROR(flush());
  return Value::MakeList(std::move(batches));
}

Args Rest(const Args& args, size_t skip) {
  Args rest;
  if (args.positional.size() > skip)
    rest.positional.assign(args.positional.begin() + static_cast<ptrdiff_t>(skip), args.positional.end());
  rest.named = args.named;
  return rest;
}

const Value* Named(const Args& args, absl::string_view name) {
  for (const auto& [key, value] : args.named) {
    if (key == name) return &value;
  }
  return nullptr;
}

Result Map(Interpreter* in, const Value& self, const Bound& args) {
  if (!self.Truthy()) return Value::MakeList({});  // None too, as in Jinja
  ASSIGN_OR_RETURN(Items items, ItemsOf(in, self));
  const Value* attribute = Named(*args.raw, "attribute");
  const Value* otherwise = Named(*args.raw, "default");
  if (attribute == nullptr && args.raw->positional.empty()) {
    return absl::InvalidArgumentError("map requires a filter argument");
  }
  const bool by_attribute = args.raw->positional.empty();
  std::string name;
  if (!by_attribute) {
    ASSIGN_OR_RETURN(name, StringArgument(&args.raw->positional[0], ""));
  }
  const Args rest = Rest(*args.raw, 1);
  for (Value& item : items) {
    ASSIGN_OR_RETURN(item, by_attribute ? Attribute(in, item, attribute) : in->CallFilter(name, item, rest));
    if (by_attribute && item.is_undefined() && otherwise != nullptr) item = *otherwise;
  }
  return Value::MakeList(std::move(items));
}

// The filters select and reject, and with kByAttribute selectattr and rejectattr, whose first argument is the
// attribute to test.
template <bool kKeep, bool kByAttribute>
Result Choose(Interpreter* in, const Value& self, const Bound& args) {
  if (!self.Truthy()) return Value::MakeList({});  // None too, as in Jinja
  ASSIGN_OR_RETURN(const Items items, ItemsOf(in, self));
  const auto& given = args.raw->positional;
  if (kByAttribute && given.empty())
    return absl::InvalidArgumentError("missing parameter for attribute name");
  const Value* attribute = kByAttribute ? &given[0] : nullptr;
  constexpr size_t kTest = kByAttribute ? 1 : 0;
  std::string test;
  if (given.size() > kTest) {
    ASSIGN_OR_RETURN(test, StringArgument(&given[kTest], ""));
  }
  const Args rest = Rest(*args.raw, kTest + 1);
  Items kept;
  for (const Value& item : items) {
    ASSIGN_OR_RETURN(const Value value, Attribute(in, item, attribute));
    bool passed = value.Truthy();
    if (!test.empty()) {
      ASSIGN_OR_RETURN(passed, in->CallTest(test, value, rest));
    }
    if (passed == kKeep) kept.push_back(item);
  }
  return Value::MakeList(std::move(kept));
}

Result AttributeFilter(Interpreter* in, const Value& self, const Bound& args) {
  ASSIGN_OR_RETURN(const std::string name, StringArgument(args[0], ""));
  if (self.is_dict()) return Value(Value::Variant(Undefined{name}));  // an item is not an attribute
  return in->GetAttribute(self, name);
}

}  // namespace

const BuiltinTable& SequenceFilters() {
  static const auto* const table = new BuiltinTable{
      {"sort", {Sort, "reverse case_sensitive attribute"}},
      {"dictsort", {DictSort, "case_sensitive by reverse"}},
      {"unique", {Unique, "case_sensitive attribute"}},
      {"min", {Extreme<-1>, "case_sensitive attribute"}},
      {"max", {Extreme<1>, "case_sensitive attribute"}},
      {"sum", {Sum, "attribute start"}},
      {"length", {Length, ""}},
      {"count", {Length, ""}},
      {"first", {First, ""}},
      {"last", {Last, ""}},
      {"join", {Join, "d attribute"}},
      {"list", {ListFilter, ""}},
      {"reverse", {Reverse, ""}},
      {"items", {ItemsFilter, ""}},
      {"batch", {Batch, "linecount! fill_with"}},
      {"map", {Map, "*"}},
      {"select", {Choose<true, false>, "*"}},
      {"reject", {Choose<false, false>, "*"}},
      {"selectattr", {Choose<true, true>, "*"}},
      {"rejectattr", {Choose<false, true>, "*"}},
      {"attr", {AttributeFilter, "name!"}},
  };
  return *table;
}

}  // namespace somnus::jinja
