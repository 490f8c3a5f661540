#include <cmath>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "text/jinja/format.h"
#include "text/jinja/interpreter.h"

namespace somnus::jinja {
namespace {

absl::Status Overflow() { return absl::InvalidArgumentError("integer overflow"); }
absl::Status DivisionByZero() { return absl::InvalidArgumentError("division by zero"); }

absl::Status Unsupported(const Value& left, const Value& right) {
  if (left.is_undefined()) return UndefinedError(left);
  if (right.is_undefined()) return UndefinedError(right);
  return absl::InvalidArgumentError(
      absl::StrCat("unsupported operand types: '", left.TypeName(), "' and '", right.TypeName(), "'"));
}

absl::StatusOr<Value> IntegerPower(int64_t base, int64_t exponent) {
  int64_t result = 1;
  if (base == 0 || base == 1) return Value::Int(exponent == 0 ? 1 : base);
  if (base == -1) return Value::Int(exponent % 2 == 0 ? 1 : -1);
  for (; exponent > 0; --exponent) {  // at most 63 rounds before an overflow
    if (__builtin_mul_overflow(result, base, &result)) return Overflow();
  }
  return Value::Int(result);
}

absl::StatusOr<Value> IntegerArithmetic(Operator op, int64_t a, int64_t b) {
  int64_t result = 0;
  switch (op) {
    case Operator::kAdd:
      return __builtin_add_overflow(a, b, &result) ? Overflow() : absl::StatusOr<Value>(Value::Int(result));
    case Operator::kSub:
      return __builtin_sub_overflow(a, b, &result) ? Overflow() : absl::StatusOr<Value>(Value::Int(result));
    case Operator::kMul:
      return __builtin_mul_overflow(a, b, &result) ? Overflow() : absl::StatusOr<Value>(Value::Int(result));
    case Operator::kDiv:
      if (b == 0) return DivisionByZero();
      return Value::Float(static_cast<double>(a) / static_cast<double>(b));
    case Operator::kFloorDiv:
    case Operator::kMod: {
      if (b == 0) return DivisionByZero();
      if (b == -1) return op == Operator::kMod ? Value::Int(0) : IntegerArithmetic(Operator::kSub, 0, a);
      const int64_t remainder = a % b, quotient = a / b;
      const bool adjust = remainder != 0 && (remainder < 0) != (b < 0);
      return Value::Int(op == Operator::kMod ? remainder + (adjust ? b : 0) : quotient - adjust);
    }
    default:
      return b >= 0   ? IntegerPower(a, b)
             : a == 0 ? DivisionByZero()
                      : absl::StatusOr<Value>(Value::Float(std::pow(a, b)));
  }
}

absl::StatusOr<Value> FloatArithmetic(Operator op, double a, double b) {
  switch (op) {
    case Operator::kAdd:
      return Value::Float(a + b);
    case Operator::kSub:
      return Value::Float(a - b);
    case Operator::kMul:
      return Value::Float(a * b);
    case Operator::kPow:
      return Value::Float(std::pow(a, b));
    default:
      break;
  }
  if (b == 0) return DivisionByZero();
  if (op == Operator::kDiv) return Value::Float(a / b);
  double remainder = std::fmod(a, b);
  if (remainder != 0 && (remainder < 0) != (b < 0)) remainder += b;
  return Value::Float(op == Operator::kMod ? remainder : std::floor((a - remainder) / b + 0.5));
}

bool Ordered(Operator op, int order) {
  switch (op) {
    case Operator::kLt:
      return order < 0;
    case Operator::kLe:
      return order <= 0;
    case Operator::kGt:
      return order > 0;
    default:
      return order >= 0;
  }
}

}  // namespace

absl::StatusOr<bool> Interpreter::CheckedEquals(const Value& a, const Value& b) {
  RETURN_IF_ERROR(Charge(std::min(a.weight(), b.weight())));
  return Equals(a, b);
}

absl::StatusOr<bool> Interpreter::Contains(const Value& container, const Value& item) {
  if (container.is_string()) {
    if (!item.is_string()) return TypeError("'in <string>' requires string, not", item);
    RETURN_IF_ERROR(ChargeBytes(static_cast<int64_t>(container.str().size())));
    return container.str().find(item.str()) != std::string::npos;
  }
  if (container.is_dict()) {
    RETURN_IF_ERROR(CheckedEquals(item, item).status());
    return container.dict().Find(item) != nullptr;
  }
  ASSIGN_OR_RETURN(const std::shared_ptr<const List> items, Iterate(container));
  for (const Value& candidate : items->items) {
    ASSIGN_OR_RETURN(const bool equal, CheckedEquals(candidate, item));
    if (equal) return true;
  }
  return false;
}

namespace {

absl::StatusOr<Value> Repeat(Interpreter* in, const Value& sequence, int64_t count) {
  count = std::max<int64_t>(count, 0);
  const int64_t size = sequence.is_string() ? static_cast<int64_t>(sequence.str().size()) / 32 + 1
                                            : static_cast<int64_t>(sequence.list().items.size());
  int64_t work = 0;
  if (__builtin_mul_overflow(size, count, &work)) work = INT64_MAX;
  RETURN_IF_ERROR(in->Charge(work));
  if (sequence.is_string()) {
    std::string text;
    text.reserve(sequence.str().size() * count);
    for (int64_t i = 0; i < count; ++i) text += sequence.str();
    return Value::String(std::move(text));
  }
  std::vector<Value> items;
  for (int64_t i = 0; i < (size == 0 ? 0 : count); ++i) {
    items.insert(items.end(), sequence.list().items.begin(), sequence.list().items.end());
  }
  return Value::MakeList(std::move(items), sequence.list().tuple);
}

absl::StatusOr<Value> Concatenate(Interpreter* in, const Value& left, const Value& right) {
  if (left.is_string()) {
    RETURN_IF_ERROR(in->ChargeBytes(static_cast<int64_t>(left.str().size() + right.str().size())));
    return Value::String(left.str() + right.str());
  }
  std::vector<Value> items = left.list().items;
  RETURN_IF_ERROR(in->Charge(static_cast<int64_t>(items.size() + right.list().items.size())));
  items.insert(items.end(), right.list().items.begin(), right.list().items.end());
  return Value::MakeList(std::move(items), left.list().tuple);
}

}  // namespace

absl::StatusOr<Value> Interpreter::Binary(Operator op, const Value& left, const Value& right) {
  switch (op) {
    case Operator::kEq:
    case Operator::kNe: {
      ASSIGN_OR_RETURN(const bool equal, CheckedEquals(left, right));
      return Value::Bool(equal == (op == Operator::kEq));
    }
    case Operator::kIn:
    case Operator::kNotIn: {
      ASSIGN_OR_RETURN(const bool found, Contains(right, left));
      return Value::Bool(found == (op == Operator::kIn));
    }
    case Operator::kLt:
    case Operator::kLe:
    case Operator::kGt:
    case Operator::kGe: {
      if (left.is_undefined() || right.is_undefined()) return Unsupported(left, right);
      RETURN_IF_ERROR(Charge(std::min(left.weight(), right.weight())));
      if (left.is_number() && right.is_number() && std::isnan(left.number() + right.number()))
        return Value::Bool(false);
      ASSIGN_OR_RETURN(const int order, Compare(left, right));
      return Value::Bool(Ordered(op, order));
    }
    default:
      break;
  }
  if (left.is_integral() && right.is_integral())
    return IntegerArithmetic(op, left.integer(), right.integer());
  if (left.is_number() && right.is_number()) return FloatArithmetic(op, left.number(), right.number());
  if (op == Operator::kAdd) {
    const bool lists = left.is_list() && right.is_list() && left.list().tuple == right.list().tuple;
    if (lists || (left.is_string() && right.is_string())) return Concatenate(this, left, right);
  }
  if (op == Operator::kMul) {
    if ((left.is_string() || left.is_list()) && right.is_integral())
      return Repeat(this, left, right.integer());
    if ((right.is_string() || right.is_list()) && left.is_integral())
      return Repeat(this, right, left.integer());
  }
  if (op == Operator::kMod && left.is_string()) {
    RETURN_IF_ERROR(Charge(left.weight() + right.weight()));
    ASSIGN_OR_RETURN(std::string text, PercentFormat(left.str(), right));
    RETURN_IF_ERROR(ChargeBytes(static_cast<int64_t>(text.size())));
    return Value::String(std::move(text));
  }
  return Unsupported(left, right);
}

}  // namespace somnus::jinja
