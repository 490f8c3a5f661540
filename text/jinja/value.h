#pragma once
// Values of the template language: Python's values, as far as templates can use these. Copying a Value is
// cheap: containers and strings are shared and immutable, except for namespaces. Not thread safe; a render
// owns its values.

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace somnus::jinja {

class Value;
struct Scope;
struct MacroNode;

struct Undefined {
  std::string name;  // the key that was looked up, for error messages
};
struct None {};

struct List {
  std::vector<Value> items;
  bool tuple = false;
  int depth = 1;       // levels of nesting, this list included
  int64_t weight = 1;  // see Value::weight
};

// A dict keeps the order of insertion. Keys are equal as in Python: 1, 1.0 and True are one key.
class Dict {
 public:
  // These are out of line, here and in Value, to save compile time: every file of this folder copies dicts
  // and values, and would compile the hash table and the variant again.
  Dict();
  ~Dict();
  Dict(const Dict&);
  Dict(Dict&&) noexcept;
  Dict& operator=(const Dict&);
  Dict& operator=(Dict&&) noexcept;

  const Value* Find(const Value& key) const;
  const Value* Find(absl::string_view key) const;
  void Set(const Value& key, Value value);
  const std::vector<std::pair<Value, Value>>& items() const { return items_; }
  void Clear();
  int depth = 1;
  int64_t weight = 1;

 private:
  std::vector<std::pair<Value, Value>> items_;
  absl::flat_hash_map<std::string, size_t> index_;  // by CanonicalKey
};

struct Namespace {
  Dict attributes;
};

// The `loop` variable of one for statement.
struct LoopState {
  std::shared_ptr<const List> items;
  int64_t index0 = 0;
  int64_t depth0 = 0;
  std::vector<Value> last_changed;  // arguments of the latest loop.changed()
  bool changed_called = false;
};

// A callable: a macro, a global function or a method bound to an object.
struct Callable {
  enum class Kind { kMacro, kGlobal, kMethod };
  Kind kind = Kind::kGlobal;
  std::string name;
  const MacroNode* macro = nullptr;  // owned by the template
  std::shared_ptr<Scope> scope;      // where the macro was defined
  std::unique_ptr<Value> self;       // of a method
};

class Value {
 public:
  using Variant =
      std::variant<Undefined, None, bool, int64_t, double, std::shared_ptr<const std::string>,
                   std::shared_ptr<const List>, std::shared_ptr<const Dict>, std::shared_ptr<Namespace>,
                   std::shared_ptr<LoopState>, std::shared_ptr<const Callable>>;
  Value();
  ~Value();
  Value(const Value&);
  Value(Value&&) noexcept;
  Value& operator=(const Value&);
  Value& operator=(Value&&) noexcept;
  explicit Value(Variant v);
  static Value OfNone() { return Value(Variant(None{})); }
  static Value Bool(bool b) { return Value(Variant(b)); }
  static Value Int(int64_t i) { return Value(Variant(i)); }
  static Value Float(double d) { return Value(Variant(d)); }
  static Value String(std::string s) {
    return Value(Variant(std::make_shared<const std::string>(std::move(s))));
  }
  // ResourceExhausted when the values nest too deep or weigh too much.
  static absl::StatusOr<Value> MakeList(std::vector<Value> items, bool tuple = false);
  static absl::StatusOr<Value> MakeDict(Dict dict);

  template <typename T>
  bool Is() const {
    return std::holds_alternative<T>(v_);
  }
  bool is_undefined() const { return Is<Undefined>(); }
  bool is_none() const { return Is<None>(); }
  bool is_bool() const { return Is<bool>(); }
  bool is_int() const { return Is<int64_t>(); }
  bool is_float() const { return Is<double>(); }
  bool is_number() const { return is_bool() || is_int() || is_float(); }
  bool is_integral() const { return is_bool() || is_int(); }
  bool is_string() const { return Is<std::shared_ptr<const std::string>>(); }
  bool is_list() const { return Is<std::shared_ptr<const List>>(); }  // tuples too
  bool is_dict() const { return Is<std::shared_ptr<const Dict>>(); }
  bool is_callable() const { return Is<std::shared_ptr<const Callable>>(); }

  // Each needs the matching kind.
  const std::string& str() const { return *std::get<std::shared_ptr<const std::string>>(v_); }
  const List& list() const { return *std::get<std::shared_ptr<const List>>(v_); }
  const Dict& dict() const { return *std::get<std::shared_ptr<const Dict>>(v_); }
  int64_t integer() const { return is_bool() ? std::get<bool>(v_) : std::get<int64_t>(v_); }
  double number() const { return is_float() ? std::get<double>(v_) : static_cast<double>(integer()); }
  const Variant& variant() const { return v_; }
  template <typename T>
  const std::shared_ptr<T>* shared() const {
    return std::get_if<std::shared_ptr<T>>(&v_);
  }

  bool Truthy() const;
  int depth() const;
  // The number of values that a full traversal visits. A list that holds a second list twice counts that list
  // twice, so that doubling a value in a loop cannot hide exponential work.
  int64_t weight() const;
  const char* TypeName() const;  // Python's

 private:
  Variant v_;
};

inline constexpr int kMaxValueDepth = 200;
inline constexpr int64_t kMaxValueWeight = 50'000'000;

bool Equals(const Value& a, const Value& b);
// Returns -1, 0 or 1. InvalidArgument for kinds that Python does not order.
absl::StatusOr<int> Compare(const Value& a, const Value& b);
absl::StatusOr<Value> FromJson(const nlohmann::ordered_json& json, int depth = 1);

}  // namespace somnus::jinja
