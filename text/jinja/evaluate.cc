#include <limits>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "text/jinja/builtins.h"
#include "text/jinja/interpreter.h"
#include "text/jinja/text.h"

namespace somnus::jinja {

Value Interpreter::LookUp(absl::string_view name) const {
  for (const Scope* scope = scope_.get(); scope != nullptr; scope = scope->parent.get()) {
    if (const auto it = scope->variables.find(name); it != scope->variables.end()) return it->second;
  }
  if (IsGlobalFunction(name)) {
    auto callable = std::make_shared<Callable>();
    callable->name = std::string(name);
    return Value(Value::Variant(std::shared_ptr<const Callable>(std::move(callable))));
  }
  return Value(Value::Variant(Undefined{std::string(name)}));
}

absl::StatusOr<std::vector<Value>> Interpreter::EvaluateAll(const std::vector<ExprPtr>& exprs) {
  std::vector<Value> values;
  values.reserve(exprs.size());
  for (const ExprPtr& expr : exprs) {
    ASSIGN_OR_RETURN(Value value, Evaluate(*expr));
    values.push_back(std::move(value));
  }
  return values;
}

absl::StatusOr<Args> Interpreter::EvaluateArgs(const CallArgs& args) {
  Args out;
  ASSIGN_OR_RETURN(out.positional, EvaluateAll(args.positional));
  for (const auto& [name, expr] : args.named) {
    ASSIGN_OR_RETURN(Value value, Evaluate(*expr));
    out.named.emplace_back(name, std::move(value));
  }
  return out;
}

absl::StatusOr<Value> Interpreter::EvaluateDict(const Expr& expr) {
  ASSIGN_OR_RETURN(const std::vector<Value> values, EvaluateAll(expr.children));
  Dict dict;
  for (size_t i = 0; i + 1 < values.size(); i += 2) {
    RETURN_IF_ERROR(CheckHashable(values[i]));
    RETURN_IF_ERROR(Charge(values[i].weight()));
    dict.Set(values[i], values[i + 1]);
  }
  return Value::MakeDict(std::move(dict));
}

absl::StatusOr<Value> Interpreter::EvaluateUnary(const Expr& expr) {
  ASSIGN_OR_RETURN(const Value operand, Evaluate(*expr.children[0]));
  if (expr.kind == Expr::Kind::kNot) return Value::Bool(!operand.Truthy());
  if (!operand.is_number()) return TypeError("bad operand type for unary sign:", operand);
  const bool negative = expr.kind == Expr::Kind::kNegative;
  if (operand.is_float()) return Value::Float(negative ? -operand.number() : operand.number());
  if (negative && operand.integer() == std::numeric_limits<int64_t>::min()) {
    return absl::InvalidArgumentError("integer overflow");
  }
  return Value::Int(negative ? -operand.integer() : operand.integer());
}

absl::StatusOr<Value> Interpreter::EvaluateChain(const Expr& expr) {
  const Operator first = expr.operators[0];
  if (first >= Operator::kEq) return EvaluateComparison(expr);
  ASSIGN_OR_RETURN(Value left, Evaluate(*expr.children[0]));
  if (first == Operator::kConcat) {
    // One buffer for the whole chain keeps a ~ b ~ c ... linear.
    ASSIGN_OR_RETURN(std::string text, Text(left));
    for (size_t i = 1; i < expr.children.size(); ++i) {
      ASSIGN_OR_RETURN(const Value next, Evaluate(*expr.children[i]));
      ASSIGN_OR_RETURN(const std::string part, Text(next));
      text += part;
    }
    return Value::String(std::move(text));
  }
  for (size_t i = 0; i < expr.operators.size(); ++i) {
    const Operator op = expr.operators[i];
    if (op == Operator::kAnd && !left.Truthy()) return left;
    if (op == Operator::kOr && left.Truthy()) return left;
    ASSIGN_OR_RETURN(Value right, Evaluate(*expr.children[i + 1]));
    if (op == Operator::kAnd || op == Operator::kOr) {
      left = std::move(right);
    } else {
      ASSIGN_OR_RETURN(left, Binary(op, left, right));
    }
  }
  return left;
}

absl::StatusOr<Value> Interpreter::EvaluateComparison(const Expr& expr) {
  ASSIGN_OR_RETURN(Value left, Evaluate(*expr.children[0]));
  Value result = Value::Bool(true);
  for (size_t i = 0; i < expr.operators.size() && result.Truthy(); ++i) {
    ASSIGN_OR_RETURN(Value right, Evaluate(*expr.children[i + 1]));
    ASSIGN_OR_RETURN(result, Binary(expr.operators[i], left, right));
    left = std::move(right);
  }
  return result;
}

absl::StatusOr<Value> Interpreter::ApplyPostfixes(const Expr& expr, Value value) {
  for (const Postfix& postfix : expr.postfixes) {
    ASSIGN_OR_RETURN(value, ApplyPostfix(postfix, value));
  }
  return value;
}

absl::StatusOr<Value> Interpreter::ApplyPostfix(const Postfix& postfix, const Value& value) {
  RETURN_IF_ERROR(Charge(0));
  switch (postfix.kind) {
    case Postfix::Kind::kAttribute:
      return GetAttribute(value, postfix.name);
    case Postfix::Kind::kItem: {
      ASSIGN_OR_RETURN(const Value key, Evaluate(*postfix.index));
      return GetItem(value, key);
    }
    case Postfix::Kind::kSlice:
      return ApplySlice(postfix, value);
    case Postfix::Kind::kCall: {
      ASSIGN_OR_RETURN(const Args args, EvaluateArgs(postfix.args));
      return Call(value, args);
    }
    case Postfix::Kind::kFilter: {
      ASSIGN_OR_RETURN(const Args args, EvaluateArgs(postfix.args));
      return CallFilter(postfix.name, value, args);
    }
    case Postfix::Kind::kTest: {
      ASSIGN_OR_RETURN(const Args args, EvaluateArgs(postfix.args));
      ASSIGN_OR_RETURN(const bool result, CallTest(postfix.name, value, args));
      return Value::Bool(result != postfix.negated);
    }
  }
  return Value();
}

absl::StatusOr<Value> Interpreter::ApplySlice(const Postfix& postfix, const Value& value) {
  std::optional<int64_t> parts[3];
  const Expr* exprs[3] = {postfix.index.get(), postfix.stop.get(), postfix.step.get()};
  for (int i = 0; i < 3; ++i) {
    if (exprs[i] == nullptr) continue;
    ASSIGN_OR_RETURN(const Value part, Evaluate(*exprs[i]));
    if (part.is_none()) continue;
    if (!part.is_integral()) return TypeError("slice indices must be integers, not", part);
    parts[i] = part.integer();
  }
  if (value.is_undefined()) return UndefinedError(value);
  if (!value.is_list() && !value.is_string()) return Value();
  const int64_t step = parts[2].value_or(1);
  if (step == 0) return absl::InvalidArgumentError("slice step cannot be zero");
  RETURN_IF_ERROR(value.is_list() ? Charge(static_cast<int64_t>(value.list().items.size()))
                                  : ChargeBytes(4 * static_cast<int64_t>(value.str().size())));
  const int64_t size =
      value.is_list() ? static_cast<int64_t>(value.list().items.size()) : CharCount(value.str());
  const int64_t low = step > 0 ? 0 : -1, high = step > 0 ? size : size - 1;
  const auto clamp = [&](std::optional<int64_t> index, int64_t otherwise) {
    if (!index) return otherwise;
    const int64_t at = *index < 0 ? *index + size : *index;
    return std::min(std::max(at, low), high);
  };
  const int64_t start = clamp(parts[0], step > 0 ? 0 : size - 1),
                stop = clamp(parts[1], step > 0 ? size : -1);
  if (value.is_string() && step == 1) {
    const size_t begin = CharOffset(value.str(), start);
    const size_t length =
        CharOffset(absl::string_view(value.str()).substr(begin), std::max<int64_t>(0, stop - start));
    return Value::String(value.str().substr(begin, length));
  }
  const std::vector<absl::string_view> characters =
      value.is_string() ? Characters(value.str()) : std::vector<absl::string_view>();
  std::vector<Value> items;
  std::string text;
  for (int64_t i = start; step > 0 ? i < stop : i > stop;) {
    if (value.is_string()) {
      absl::StrAppend(&text, characters[i]);
    } else {
      items.push_back(value.list().items[i]);
    }
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  return value.is_string() ? Value::String(std::move(text))
                           : Value::MakeList(std::move(items), value.list().tuple);
}

absl::StatusOr<Value> Interpreter::Call(const Value& callee, const Args& args) {
  const auto* callable = callee.shared<const Callable>();
  if (callable == nullptr) return TypeError("cannot call an object of type", callee);
  const std::shared_ptr<const Callable> keep = *callable;  // a macro may overwrite the variable that holds
                                                           // the macro
  switch (keep->kind) {
    case Callable::Kind::kMacro:
      return CallMacro(*keep, args);
    case Callable::Kind::kGlobal:
      return CallGlobal(this, keep->name, args);
    case Callable::Kind::kMethod:
      return CallMethod(this, *keep->self, keep->name, args);
  }
  return Value();
}

absl::StatusOr<Value> Interpreter::GetAttribute(const Value& object, absl::string_view name) {
  if (object.is_undefined()) return UndefinedError(object);
  if (HasMethod(object, name)) {
    auto callable = std::make_shared<Callable>();
    callable->kind = Callable::Kind::kMethod;
    callable->name = std::string(name);
    callable->self = std::make_unique<Value>(object);
    return Value(Value::Variant(std::shared_ptr<const Callable>(std::move(callable))));
  }
  if (object.is_dict()) {
    if (const Value* value = object.dict().Find(name)) return *value;
  } else if (const auto* space = object.shared<Namespace>()) {
    if (const Value* value = (*space)->attributes.Find(name)) return *value;
  } else if (const auto* loop = object.shared<LoopState>()) {
    return LoopAttribute(**loop, name);
  }
  return Value(Value::Variant(Undefined{std::string(name)}));
}

absl::StatusOr<Value> Interpreter::GetItem(const Value& object, const Value& key) {
  if (object.is_undefined()) return UndefinedError(object);
  RETURN_IF_ERROR(Charge(key.weight()));
  if (object.is_dict()) {
    if (const Value* value = object.dict().Find(key)) return *value;
  } else if (key.is_integral() && (object.is_list() || object.is_string())) {
    if (object.is_string()) RETURN_IF_ERROR(ChargeBytes(2 * static_cast<int64_t>(object.str().size())));
    const int64_t size =
        object.is_list() ? static_cast<int64_t>(object.list().items.size()) : CharCount(object.str());
    const int64_t index = key.integer() < 0 ? key.integer() + size : key.integer();
    if (index < 0 || index >= size)
      return Value(Value::Variant(Undefined{absl::StrCat("item ", key.integer())}));
    if (object.is_list()) return object.list().items[index];
    const size_t begin = CharOffset(object.str(), index);
    return Value::String(
        object.str().substr(begin, CharOffset(absl::string_view(object.str()).substr(begin), 1)));
  }
  if (key.is_string() && (!object.is_dict() || HasMethod(object, key.str())))
    return GetAttribute(object, key.str());
  return Value(Value::Variant(Undefined{key.is_string() ? key.str() : "item"}));
}

}  // namespace somnus::jinja
