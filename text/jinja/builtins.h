#pragma once
// Filters, tests, methods and global functions: tables from names to functions with declared parameters.

#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "text/jinja/interpreter.h"
#include "text/jinja/value.h"

namespace somnus::jinja {

// Arguments in the order of the declared parameters; nullptr for a parameter that the caller did not give.
// `raw` has the caller's arguments.
struct Bound {
  std::vector<const Value*> slots;
  const Args* raw;
  const Value* operator[](size_t i) const { return i < slots.size() ? slots[i] : nullptr; }
  bool Flag(size_t i, bool otherwise) const { return (*this)[i] != nullptr ? slots[i]->Truthy() : otherwise; }
};

using Function = absl::StatusOr<Value> (*)(Interpreter* in, const Value& self, const Bound& args);

// `parameters`: names, separated by spaces. A "!" after a name makes the parameter required; "*" alone takes
// any arguments.
struct Builtin {
  Function function;
  const char* parameters;
};

// Builtins by name. Immutable.
class BuiltinTable {
 public:
  using Entry = std::pair<absl::string_view, Builtin>;
  BuiltinTable(std::initializer_list<Entry> entries);
  // Returns nullptr when there is none.
  const Builtin* Find(absl::string_view name) const;

 private:
  std::vector<Entry> entries_;  // ascending by name
};

const BuiltinTable& TextFilters();
const BuiltinTable& NumberFilters();
const BuiltinTable& SequenceFilters();
const BuiltinTable& Tests();
const BuiltinTable& StringMethods();
const BuiltinTable& ContainerMethods(const Value& self);  // of a list, dict or loop; empty for other values

absl::StatusOr<Value> Invoke(Interpreter* in, absl::string_view name, const Builtin& builtin,
                             const Value& self, const Args& args);

bool IsGlobalFunction(absl::string_view name);
absl::StatusOr<Value> CallGlobal(Interpreter* in, absl::string_view name, const Args& args);
bool HasMethod(const Value& object, absl::string_view name);
absl::StatusOr<Value> CallMethod(Interpreter* in, const Value& self, absl::string_view name,
                                 const Args& args);
absl::StatusOr<Value> LoopAttribute(const LoopState& loop, absl::string_view name);

// InvalidArgument for lists and dicts, which cannot be keys.
absl::Status CheckHashable(const Value& key);
// Returns an integer argument, or `otherwise` when the argument is missing or None.
absl::StatusOr<int64_t> IntegerArgument(const Value* value, int64_t otherwise);
absl::StatusOr<std::string> StringArgument(const Value* value, absl::string_view otherwise);

}  // namespace somnus::jinja
