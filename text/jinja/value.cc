#include "text/jinja/value.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "text/jinja/text.h"

namespace somnus::jinja {
namespace {

constexpr size_t kIndexFrom = 8;  // dicts with fewer entries are searched without an index

absl::Status TooDeep() { return absl::ResourceExhaustedError("values nest too deep"); }

absl::Status CheckSize(int depth, int64_t weight) {
  if (depth > kMaxValueDepth) return TooDeep();
  return weight <= kMaxValueWeight ? absl::OkStatus() : absl::ResourceExhaustedError("a value is too large");
}

// Returns strings that are equal exactly for equal keys.
std::string CanonicalKey(const Value& key) {
  if (key.is_string()) return "s" + key.str();
  if (key.is_number()) {
    const double number = key.number();
    const bool whole = key.is_integral() ||
                       (std::isfinite(number) && number == std::floor(number) && std::fabs(number) < 9e15);
    return whole ? absl::StrCat("i", key.is_integral() ? key.integer() : static_cast<int64_t>(number))
                 : "f" + FloatRepr(number);
  }
  if (key.is_none()) return "n";
  std::string out = "(";
  if (key.is_list()) {
    for (const Value& item : key.list().items) {
      const std::string part = CanonicalKey(item);
      absl::StrAppend(&out, part.size(), ":", part);
    }
  }
  return out;
}

}  // namespace

Dict::Dict() = default;
Dict::~Dict() = default;
Dict::Dict(const Dict&) = default;
Dict::Dict(Dict&&) noexcept = default;
Dict& Dict::operator=(const Dict&) = default;
Dict& Dict::operator=(Dict&&) noexcept = default;

Value::Value() : v_(Undefined{}) {}
Value::~Value() = default;
Value::Value(const Value&) = default;
Value::Value(Value&&) noexcept = default;
Value& Value::operator=(const Value&) = default;
Value& Value::operator=(Value&&) noexcept = default;
Value::Value(Variant v) : v_(std::move(v)) {}

const Value* Dict::Find(const Value& key) const {
  if (index_.empty()) {
    for (const auto& [k, v] : items_) {
      if (Equals(k, key)) return &v;
    }
    return nullptr;
  }
  const auto it = index_.find(CanonicalKey(key));
  return it == index_.end() ? nullptr : &items_[it->second].second;
}

const Value* Dict::Find(absl::string_view key) const {
  if (index_.empty()) {
    for (const auto& [k, v] : items_) {
      if (k.is_string() && k.str() == key) return &v;
    }
    return nullptr;
  }
  const auto it = index_.find(absl::StrCat("s", key));
  return it == index_.end() ? nullptr : &items_[it->second].second;
}

void Dict::Set(const Value& key, Value value) {
  depth = std::max({depth, value.depth() + 1, key.depth() + 1});
  weight += key.weight() + value.weight();
  if (const Value* found = Find(key)) {
    *const_cast<Value*>(found) = std::move(value);
    return;
  }
  items_.emplace_back(key, std::move(value));
  if (items_.size() < kIndexFrom) return;
  if (index_.empty()) {
    for (size_t i = 0; i < items_.size(); ++i) index_[CanonicalKey(items_[i].first)] = i;
  } else {
    index_[CanonicalKey(key)] = items_.size() - 1;
  }
}

void Dict::Clear() {
  items_.clear();
  index_.clear();
}

absl::StatusOr<Value> Value::MakeList(std::vector<Value> items, bool tuple) {
  auto list = std::make_shared<List>();
  for (const Value& item : items) {
    list->depth = std::max(list->depth, item.depth() + 1);
    list->weight += item.weight();
  }
  RETURN_IF_ERROR(CheckSize(list->depth, list->weight));
  list->items = std::move(items);
  list->tuple = tuple;
  return Value(Variant(std::shared_ptr<const List>(std::move(list))));
}

absl::StatusOr<Value> Value::MakeDict(Dict dict) {
  RETURN_IF_ERROR(CheckSize(dict.depth, dict.weight));
  return Value(Variant(std::shared_ptr<const Dict>(std::make_shared<Dict>(std::move(dict)))));
}

bool Value::Truthy() const {
  if (is_undefined() || is_none()) return false;
  if (is_number()) return number() != 0;
  if (is_string()) return !str().empty();
  if (is_list()) return !list().items.empty();
  if (is_dict()) return !dict().items().empty();
  return true;
}

int Value::depth() const {
  if (is_list()) return list().depth;
  if (is_dict()) return dict().depth;
  const auto* callable = shared<const Callable>();
  return callable != nullptr && (*callable)->self != nullptr ? (*callable)->self->depth() + 1 : 0;
}

int64_t Value::weight() const {
  if (is_string()) return 1 + static_cast<int64_t>(str().size() / 64);
  if (is_list()) return list().weight;
  if (is_dict()) return dict().weight;
  const auto* callable = shared<const Callable>();
  return callable != nullptr && (*callable)->self != nullptr ? (*callable)->self->weight() + 1 : 1;
}

const char* Value::TypeName() const {
  if (is_undefined()) return "undefined";
  if (is_none()) return "NoneType";
  if (is_bool()) return "bool";
  if (is_int()) return "int";
  if (is_float()) return "float";
  if (is_string()) return "str";
  if (is_list()) return list().tuple ? "tuple" : "list";
  if (is_dict()) return "dict";
  return is_callable() ? "function" : "object";
}

bool Equals(const Value& a, const Value& b) {
  if (a.is_integral() && b.is_integral()) return a.integer() == b.integer();
  if (a.is_number() && b.is_number()) return a.number() == b.number();
  if (a.is_string() && b.is_string()) return a.str() == b.str();
  if (a.is_list() && b.is_list()) {
    return a.list().tuple == b.list().tuple &&
           std::equal(a.list().items.begin(), a.list().items.end(), b.list().items.begin(),
                      b.list().items.end(), Equals);
  }
  if (a.is_dict() && b.is_dict()) {
    if (a.dict().items().size() != b.dict().items().size()) return false;
    for (const auto& [key, value] : a.dict().items()) {
      const Value* other = b.dict().Find(key);
      if (other == nullptr || !Equals(value, *other)) return false;
    }
    return true;
  }
  if (a.variant().index() != b.variant().index()) return false;
  if (a.is_undefined() || a.is_none()) return true;
  if (const auto* x = a.shared<Namespace>()) return *x == *b.shared<Namespace>();
  if (const auto* x = a.shared<LoopState>()) return *x == *b.shared<LoopState>();
  if (const auto* x = a.shared<const Callable>()) return *x == *b.shared<const Callable>();
  return false;
}

absl::StatusOr<int> Compare(const Value& a, const Value& b) {
  if (a.is_integral() && b.is_integral()) {
    return a.integer() < b.integer() ? -1 : a.integer() > b.integer() ? 1 : 0;
  }
  if (a.is_number() && b.is_number()) return a.number() < b.number() ? -1 : a.number() > b.number() ? 1 : 0;
  if (a.is_string() && b.is_string()) {
    const int order = a.str().compare(b.str());  // UTF-8 sorts like code points
    return order < 0 ? -1 : order > 0 ? 1 : 0;
  }
  if (a.is_list() && b.is_list() && a.list().tuple == b.list().tuple) {
    const auto &x = a.list().items, &y = b.list().items;
    for (size_t i = 0; i < std::min(x.size(), y.size()); ++i) {
      if (!Equals(x[i], y[i])) return Compare(x[i], y[i]);
    }
    return x.size() < y.size() ? -1 : x.size() > y.size() ? 1 : 0;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("'", a.TypeName(), "' and '", b.TypeName(), "' have no order"));
}

absl::StatusOr<Value> FromJson(const nlohmann::ordered_json& json, int depth) {
  if (depth > kMaxValueDepth) return TooDeep();
  switch (json.type()) {
    case nlohmann::detail::value_t::boolean:
      return Value::Bool(json.get<bool>());
    case nlohmann::detail::value_t::number_integer:
      return Value::Int(json.get<int64_t>());
    case nlohmann::detail::value_t::number_unsigned: {
      const uint64_t number = json.get<uint64_t>();
      if (number > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
        return Value::Float(static_cast<double>(number));
      }
      return Value::Int(static_cast<int64_t>(number));
    }
    case nlohmann::detail::value_t::number_float:
      return Value::Float(json.get<double>());
    case nlohmann::detail::value_t::string:
      return Value::String(json.get_ref<const std::string&>());
    case nlohmann::detail::value_t::array: {
      std::vector<Value> items;
      items.reserve(json.size());
      for (const auto& child : json) {
        ASSIGN_OR_RETURN(Value item, FromJson(child, depth + 1));
        items.push_back(std::move(item));
      }
      return Value::MakeList(std::move(items));
    }
    case nlohmann::detail::value_t::object: {
      Dict dict;
      for (const auto& [key, child] : json.items()) {
        ASSIGN_OR_RETURN(Value item, FromJson(child, depth + 1));
        dict.Set(Value::String(key), std::move(item));
      }
      return Value::MakeDict(std::move(dict));
    }
    default:
      return Value::OfNone();
  }
}

}  // namespace somnus::jinja
