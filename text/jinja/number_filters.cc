#include <cmath>

#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "text/jinja/builtins.h"
#include "text/jinja/text.h"

namespace somnus::jinja {
namespace {

using Result = absl::StatusOr<Value>;

Result Truncated(double number, const Value& otherwise) {
  if (!std::isfinite(number)) return otherwise;
  if (std::fabs(number) >= 9.2e18) return absl::InvalidArgumentError("integer overflow");
  return Value::Int(static_cast<int64_t>(number));
}

Result IntFilter(Interpreter*, const Value& self, const Bound& args) {
  const Value otherwise = args[0] != nullptr ? *args[0] : Value::Int(0);
  ASSIGN_OR_RETURN(const int64_t base, IntegerArgument(args[1], 10));
  if (self.is_integral()) return Value::Int(self.integer());
  if (self.is_float()) return Truncated(self.number(), otherwise);
  if (self.is_undefined()) return UndefinedError(self);
  if (!self.is_string()) return otherwise;
  if (base != 0 && (base < 2 || base > 36)) return otherwise;
  if (const auto number = ParseInt(self.str(), static_cast<int>(base))) return Value::Int(*number);
  if (const auto number = ParseFloat(self.str())) return Truncated(*number, otherwise);
  return otherwise;
}

Result FloatFilter(Interpreter*, const Value& self, const Bound& args) {
  if (self.is_number()) return Value::Float(self.number());
  if (self.is_undefined()) return UndefinedError(self);
  const auto number = self.is_string() ? ParseFloat(self.str()) : std::nullopt;
  if (number) return Value::Float(*number);
  return args[0] != nullptr ? *args[0] : Value::Float(0.0);
}

Result Abs(Interpreter* in, const Value& self, const Bound&) {
  if (!self.is_number()) return TypeError("bad operand type for abs():", self);
  if (self.is_float()) return Value::Float(std::fabs(self.number()));
  return self.integer() < 0 ? in->Binary(Operator::kSub, Value::Int(0), self) : Value::Int(self.integer());
}

// Python's round(x, n): rounds the exact decimal expansion, ties to even.
double RoundHalfEven(double number, int precision) {
  if (precision > 300) return number;
  if (precision >= 0) return std::strtod(absl::StrFormat("%.*f", precision, number).c_str(), nullptr);
  const double scale = std::pow(10.0, -precision);
  return std::nearbyint(number / scale) * scale;
}

Result Round(Interpreter*, const Value& self, const Bound& args) {
  if (!self.is_number()) return TypeError("cannot round", self);
  ASSIGN_OR_RETURN(const int64_t precision, IntegerArgument(args[0], 0));
  ASSIGN_OR_RETURN(const std::string method, StringArgument(args[1], "common"));
  if (precision < -300 || precision > 300) return absl::InvalidArgumentError("the precision is out of range");
  const double number = self.number();
  if (method == "common") {
    // Python rounds an int to an int.
    if (self.is_integral() && precision >= 0) return Value::Int(self.integer());
    const double rounded = RoundHalfEven(number, static_cast<int>(precision));
    return self.is_integral() ? Truncated(rounded, self) : Value::Float(rounded);
  }
  const double scale = std::pow(10.0, static_cast<double>(precision));
  if (method == "ceil") return Value::Float(std::ceil(number * scale) / scale);
  if (method == "floor") return Value::Float(std::floor(number * scale) / scale);
  return absl::InvalidArgumentError("method must be common, ceil or floor");
}

}  // namespace

const BuiltinTable& NumberFilters() {
  static const auto* const table = new BuiltinTable{
      {"int", {IntFilter, "default base"}},
      {"float", {FloatFilter, "default"}},
      {"abs", {Abs, ""}},
      {"round", {Round, "precision method"}},
  };
  return *table;
}

}  // namespace somnus::jinja
