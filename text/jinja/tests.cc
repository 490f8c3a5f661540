#include "base/status_macros.h"
#include "text/jinja/builtins.h"
#include "text/jinja/text.h"

namespace somnus::jinja {
namespace {

using Result = absl::StatusOr<Value>;

template <bool (*kPredicate)(const Value&)>
Result Simple(Interpreter*, const Value& self, const Bound&) {
  return Value::Bool(kPredicate(self));
}

bool IsDefined(const Value& v) { return !v.is_undefined(); }
bool IsUndefined(const Value& v) { return v.is_undefined(); }
bool IsNone(const Value& v) { return v.is_none(); }
bool IsString(const Value& v) { return v.is_string(); }
bool IsMapping(const Value& v) { return v.is_dict(); }
bool IsIterable(const Value& v) { return v.is_list() || v.is_dict() || v.is_string() || v.is_undefined(); }
bool IsNumber(const Value& v) { return v.is_number(); }
bool IsInteger(const Value& v) { return v.is_int(); }
bool IsFloat(const Value& v) { return v.is_float(); }
bool IsBoolean(const Value& v) { return v.is_bool(); }
bool IsTrue(const Value& v) { return v.is_bool() && v.integer() != 0; }
bool IsFalse(const Value& v) { return v.is_bool() && v.integer() == 0; }
bool IsCallable(const Value& v) { return v.is_callable() || v.is_undefined(); }
bool IsEscaped(const Value&) { return false; }
bool IsLower(const Value& v) {
  return v.is_string() && Lower(v.str()) == v.str() && Upper(v.str()) != v.str();
}
bool IsUpper(const Value& v) {
  return v.is_string() && Upper(v.str()) == v.str() && Lower(v.str()) != v.str();
}

template <Operator kOperator>
Result Comparison(Interpreter* in, const Value& self, const Bound& args) {
  return in->Binary(kOperator, self, *args[0]);
}

template <int kWanted>
Result Parity(Interpreter*, const Value& self, const Bound&) {
  if (!self.is_integral()) return TypeError("an integer is needed, not", self);
  return Value::Bool((self.integer() & 1) == kWanted);
}

Result DivisibleBy(Interpreter* in, const Value& self, const Bound& args) {
  ASSIGN_OR_RETURN(const Value remainder, in->Binary(Operator::kMod, self, *args[0]));
  return Value::Bool(remainder.is_number() && remainder.number() == 0);
}

Result SameAs(Interpreter*, const Value& self, const Bound& args) {
  const Value& other = *args[0];
  if (self.variant().index() != other.variant().index()) return Value::Bool(false);
  if (const auto* list = self.shared<const List>()) return Value::Bool(*list == *other.shared<const List>());
  if (const auto* dict = self.shared<const Dict>()) return Value::Bool(*dict == *other.shared<const Dict>());
  return Value::Bool(Equals(self, other));
}

Result IsFilter(Interpreter*, const Value& self, const Bound&) {
  if (!self.is_string()) return Value::Bool(false);
  const std::string& name = self.str();
  return Value::Bool(TextFilters().Find(name) != nullptr || NumberFilters().Find(name) != nullptr ||
                     SequenceFilters().Find(name) != nullptr);
}

Result IsTest(Interpreter*, const Value& self, const Bound&) {
  return Value::Bool(self.is_string() && Tests().Find(self.str()) != nullptr);
}

}  // namespace

const BuiltinTable& Tests() {
  static const auto* const table = new BuiltinTable{
      {"defined", {Simple<IsDefined>, ""}},
      {"undefined", {Simple<IsUndefined>, ""}},
      {"none", {Simple<IsNone>, ""}},
      {"string", {Simple<IsString>, ""}},
      {"mapping", {Simple<IsMapping>, ""}},
      {"iterable", {Simple<IsIterable>, ""}},
      {"sequence", {Simple<IsIterable>, ""}},
      {"number", {Simple<IsNumber>, ""}},
      {"integer", {Simple<IsInteger>, ""}},
      {"float", {Simple<IsFloat>, ""}},
      {"boolean", {Simple<IsBoolean>, ""}},
      {"true", {Simple<IsTrue>, ""}},
      {"false", {Simple<IsFalse>, ""}},
      {"callable", {Simple<IsCallable>, ""}},
      {"escaped", {Simple<IsEscaped>, ""}},
      {"lower", {Simple<IsLower>, ""}},
      {"upper", {Simple<IsUpper>, ""}},
      {"odd", {Parity<1>, ""}},
      {"even", {Parity<0>, ""}},
      {"divisibleby", {DivisibleBy, "num!"}},
      {"sameas", {SameAs, "other!"}},
      {"filter", {IsFilter, ""}},
      {"test", {IsTest, ""}},
      {"in", {Comparison<Operator::kIn>, "seq!"}},
      {"eq", {Comparison<Operator::kEq>, "b!"}},
      {"equalto", {Comparison<Operator::kEq>, "b!"}},
      {"==", {Comparison<Operator::kEq>, "b!"}},
      {"ne", {Comparison<Operator::kNe>, "b!"}},
      {"!=", {Comparison<Operator::kNe>, "b!"}},
      {"lt", {Comparison<Operator::kLt>, "b!"}},
      {"<", {Comparison<Operator::kLt>, "b!"}},
      {"lessthan", {Comparison<Operator::kLt>, "b!"}},
      {"le", {Comparison<Operator::kLe>, "b!"}},
      {"<=", {Comparison<Operator::kLe>, "b!"}},
      {"gt", {Comparison<Operator::kGt>, "b!"}},
      {">", {Comparison<Operator::kGt>, "b!"}},
      {"greaterthan", {Comparison<Operator::kGt>, "b!"}},
      {"ge", {Comparison<Operator::kGe>, "b!"}},
      {">=", {Comparison<Operator::kGe>, "b!"}},
  };
  return *table;
}

}  // namespace somnus::jinja
