#include "text/jinja/interpreter.h"

#include <algorithm>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "text/jinja/format.h"
#include "text/jinja/text.h"

namespace somnus::jinja {

class Interpreter::Level {
 public:
  explicit Level(Interpreter* in) : in_(in) { ++in_->depth_; }
  ~Level() { --in_->depth_; }
  Level(const Level&) = delete;
  Level& operator=(const Level&) = delete;
  absl::Status status() const {
    if (in_->depth_ <= in_->limits_.max_depth) return absl::OkStatus();
    return absl::ResourceExhaustedError("the template nests too deep");
  }

 private:
  Interpreter* in_;
};

absl::Status TypeError(absl::string_view what, const Value& value) {
  if (value.is_undefined()) return UndefinedError(value);
  return absl::InvalidArgumentError(absl::StrCat(what, " '", value.TypeName(), "'"));
}

absl::Status UndefinedError(const Value& value) {
  const std::string& name = std::get<Undefined>(value.variant()).name;
  return absl::InvalidArgumentError(
      absl::StrCat(name.empty() ? "a value" : absl::StrCat("'", name, "'"), " is undefined"));
}

Interpreter::~Interpreter() {
  for (const auto& space : namespaces_) space->attributes.Clear();
  for (const auto& scope : captured_scopes_) scope->variables.clear();
  for (const auto& loop : escaped_loops_) {
    loop->items = nullptr;
    loop->last_changed.clear();
  }
}

absl::Status Interpreter::Charge(int64_t work) {
  steps_ += 1 + std::max<int64_t>(0, std::min(work, limits_.max_steps));
  if (steps_ <= limits_.max_steps) return absl::OkStatus();
  return absl::ResourceExhaustedError("the template takes more steps than allowed");
}

absl::StatusOr<std::string> Interpreter::Render(const Block& block, const Value& context) {
  scope_ = std::make_shared<Scope>();
  for (const auto& [key, value] : context.dict().items()) scope_->variables[key.str()] = value;
  std::string out;
  out_ = &out;
  const absl::StatusOr<Flow> flow = Run(block);
  if (flow.ok()) return out;
  if (raised_) return flow.status();
  return absl::Status(flow.status().code(),
                      absl::StrCat("line ", error_line_, ": ", flow.status().message()));
}

absl::Status Interpreter::Output(absl::string_view text) {
  RETURN_IF_ERROR(ChargeBytes(static_cast<int64_t>(text.size())));
  if (static_cast<int64_t>(out_->size() + text.size()) > limits_.max_output_bytes) {
    return absl::ResourceExhaustedError("the output is longer than allowed");
  }
  absl::StrAppend(out_, text);
  return absl::OkStatus();
}

absl::StatusOr<std::string> Interpreter::Text(const Value& value) {
  RETURN_IF_ERROR(Charge(value.weight()));
  return ToStr(value);
}

absl::StatusOr<Interpreter::Flow> Interpreter::Run(const Block& block) {
  const Level level(this);
  RETURN_IF_ERROR(level.status());
  for (const auto& stmt : block) {
    absl::StatusOr<Flow> flow = RunStatement(*stmt);
    if (!flow.ok() && error_line_ == 0) error_line_ = stmt->line;
    if (!flow.ok() || *flow != Flow::kNormal) return flow;
  }
  return Flow::kNormal;
}

absl::StatusOr<Interpreter::Flow> Interpreter::RunStatement(const Stmt& stmt) {
  RETURN_IF_ERROR(Charge(0));
  switch (stmt.kind) {
    case Stmt::Kind::kText:
      RETURN_IF_ERROR(Output(stmt.text));
      break;
    case Stmt::Kind::kOutput: {
      ASSIGN_OR_RETURN(const Value value, Evaluate(*stmt.expr));
      if (value.is_string()) {
        RETURN_IF_ERROR(Output(value.str()));
      } else {
        ASSIGN_OR_RETURN(const std::string text, Text(value));
        RETURN_IF_ERROR(Output(text));
      }
      break;
    }
    case Stmt::Kind::kIf:
      return RunIf(stmt);
    case Stmt::Kind::kFor:
      return RunFor(stmt);
    case Stmt::Kind::kSet: {
      ASSIGN_OR_RETURN(const Value value, Evaluate(*stmt.expr));
      RETURN_IF_ERROR(Assign(stmt.target, value));
      break;
    }
    case Stmt::Kind::kSetBlock: {
      ASSIGN_OR_RETURN(std::string text, Capture(stmt.body, std::make_shared<Scope>(Scope{scope_, {}})));
      ASSIGN_OR_RETURN(const Value value, ApplyPostfixes(*stmt.expr, Value::String(std::move(text))));
      RETURN_IF_ERROR(Assign(stmt.target, value));
      break;
    }
    case Stmt::Kind::kMacro:
      scope_->variables[stmt.macro->name] = MakeMacro(*stmt.macro);
      break;
    case Stmt::Kind::kCall:
      RETURN_IF_ERROR(RunCall(stmt));
      break;
    case Stmt::Kind::kFilter: {
      ASSIGN_OR_RETURN(std::string text, Capture(stmt.body, std::make_shared<Scope>(Scope{scope_, {}})));
      ASSIGN_OR_RETURN(const Value value, ApplyPostfixes(*stmt.expr, Value::String(std::move(text))));
      ASSIGN_OR_RETURN(const std::string result, Text(value));
      RETURN_IF_ERROR(Output(result));
      break;
    }
    case Stmt::Kind::kWith:
      return RunWith(stmt);
    case Stmt::Kind::kScope:
      return RunInScope(stmt.body);
    case Stmt::Kind::kBreak:
      return Flow::kBreak;
    case Stmt::Kind::kContinue:
      return Flow::kContinue;
  }
  return Flow::kNormal;
}

absl::StatusOr<Interpreter::Flow> Interpreter::RunIf(const Stmt& stmt) {
  for (const auto& [condition, body] : stmt.branches) {
    ASSIGN_OR_RETURN(const Value value, Evaluate(*condition));
    if (value.Truthy()) return Run(body);
  }
  return Run(stmt.otherwise);
}

absl::StatusOr<Interpreter::Flow> Interpreter::RunInScope(const Block& block) {
  scope_ = std::make_shared<Scope>(Scope{scope_, {}});
  const absl::StatusOr<Flow> flow = Run(block);
  scope_ = scope_->parent;
  return flow;
}

absl::StatusOr<Interpreter::Flow> Interpreter::RunWith(const Stmt& stmt) {
  std::vector<Value> values;
  for (const auto& binding : stmt.bindings) {
    ASSIGN_OR_RETURN(Value value, Evaluate(*binding.second));
    values.push_back(std::move(value));
  }
  scope_ = std::make_shared<Scope>(Scope{scope_, {}});
  const absl::Cleanup restore = [this] { scope_ = scope_->parent; };
  for (size_t i = 0; i < values.size(); ++i) RETURN_IF_ERROR(Assign(stmt.bindings[i].first, values[i]));
  return Run(stmt.body);
}

absl::StatusOr<std::shared_ptr<const List>> Interpreter::Iterate(const Value& value) {
  if (const auto* list = value.shared<const List>()) {
    RETURN_IF_ERROR(Charge(0));
    return *list;
  }
  auto out = std::make_shared<List>();
  if (value.is_dict()) {
    RETURN_IF_ERROR(Charge(static_cast<int64_t>(value.dict().items().size())));
    for (const auto& item : value.dict().items()) out->items.push_back(item.first);
  } else if (value.is_string()) {
    RETURN_IF_ERROR(Charge(static_cast<int64_t>(value.str().size())));
    for (const absl::string_view c : Characters(value.str()))
      out->items.push_back(Value::String(std::string(c)));
  } else if (!value.is_undefined()) {
    return TypeError("cannot iterate over", value);
  }
  return std::shared_ptr<const List>(std::move(out));
}

absl::StatusOr<std::shared_ptr<const List>> Interpreter::FilterItems(const Stmt& stmt,
                                                                     std::shared_ptr<const List> items) {
  if (stmt.condition == nullptr) return items;
  auto kept = std::make_shared<List>();
  scope_ = std::make_shared<Scope>(Scope{scope_, {}});
  const absl::Cleanup restore = [this] { scope_ = scope_->parent; };
  for (const Value& item : items->items) {
    RETURN_IF_ERROR(Assign(stmt.target, item));
    ASSIGN_OR_RETURN(const Value keep, Evaluate(*stmt.condition));
    if (keep.Truthy()) kept->items.push_back(item);
  }
  return std::shared_ptr<const List>(std::move(kept));
}

absl::StatusOr<Interpreter::Flow> Interpreter::RunFor(const Stmt& stmt) {
  ASSIGN_OR_RETURN(const Value iterable, Evaluate(*stmt.expr));
  ASSIGN_OR_RETURN(std::shared_ptr<const List> items, Iterate(iterable));
  ASSIGN_OR_RETURN(items, FilterItems(stmt, std::move(items)));
  if (items->items.empty()) return RunInScope(stmt.otherwise);
  auto loop = std::make_shared<LoopState>();
  loop->items = std::move(items);
  absl::StatusOr<Flow> flow = RunLoop(stmt, loop);
  if (loop.use_count() > 1) escaped_loops_.push_back(std::move(loop));
  return flow;
}

absl::StatusOr<Interpreter::Flow> Interpreter::RunLoop(const Stmt& stmt, std::shared_ptr<LoopState> loop) {
  const std::shared_ptr<Scope> outer = scope_;
  const absl::Cleanup restore = [this, &outer] { scope_ = outer; };
  for (const Value& item : loop->items->items) {
    RETURN_IF_ERROR(Charge(0));
    scope_ = std::make_shared<Scope>(Scope{outer, {}});
    scope_->variables["loop"] = Value(Value::Variant(loop));
    RETURN_IF_ERROR(Assign(stmt.target, item));
    ASSIGN_OR_RETURN(const Flow flow, Run(stmt.body));
    if (flow == Flow::kBreak) break;
    ++loop->index0;
  }
  return Flow::kNormal;
}

absl::StatusOr<std::string> Interpreter::Capture(const Block& block, std::shared_ptr<Scope> scope) {
  std::string captured;
  std::string* const out = std::exchange(out_, &captured);
  std::shared_ptr<Scope> outer = std::exchange(scope_, std::move(scope));
  const absl::StatusOr<Flow> flow = Run(block);
  scope_ = std::move(outer);
  out_ = out;
  if (!flow.ok()) return flow.status();
  return captured;
}

absl::Status Interpreter::Assign(const Target& target, const Value& value) {
  if (!target.parts.empty()) {
    ASSIGN_OR_RETURN(const std::shared_ptr<const List> items, Iterate(value));
    if (items->items.size() != target.parts.size()) {
      return absl::InvalidArgumentError(absl::StrCat("cannot unpack ", items->items.size(), " values into ",
                                                     target.parts.size(), " names"));
    }
    for (size_t i = 0; i < target.parts.size(); ++i)
      RETURN_IF_ERROR(Assign(target.parts[i], items->items[i]));
    return absl::OkStatus();
  }
  if (target.attribute.empty()) {
    scope_->variables[target.name] = value;
    return absl::OkStatus();
  }
  const Value object = LookUp(target.name);
  const auto* space = object.shared<Namespace>();
  if (space == nullptr) return absl::InvalidArgumentError("cannot assign attribute on non-namespace object");
  RETURN_IF_ERROR(Charge(1));
  (*space)->attributes.Set(Value::String(target.attribute), value);
  return absl::OkStatus();
}

Value Interpreter::MakeNamespace(Dict attributes) {
  auto space = std::make_shared<Namespace>();
  space->attributes = std::move(attributes);
  namespaces_.push_back(space);
  return Value(Value::Variant(std::move(space)));
}

Value Interpreter::MakeMacro(const MacroNode& macro) {
  auto callable = std::make_shared<Callable>();
  callable->kind = Callable::Kind::kMacro;
  callable->name = macro.name;
  callable->macro = &macro;
  callable->scope = scope_;
  if (captured_scopes_.empty() || captured_scopes_.back() != scope_) captured_scopes_.push_back(scope_);
  return Value(Value::Variant(std::shared_ptr<const Callable>(std::move(callable))));
}

absl::Status Interpreter::RunCall(const Stmt& stmt) {
  const std::vector<Postfix>& postfixes = stmt.expr->postfixes;
  ASSIGN_OR_RETURN(Value callee, Evaluate(*stmt.expr->children[0]));
  for (size_t i = 0; i + 1 < postfixes.size(); ++i) {
    ASSIGN_OR_RETURN(callee, ApplyPostfix(postfixes[i], callee));
  }
  ASSIGN_OR_RETURN(Args args, EvaluateArgs(postfixes.back().args));
  args.named.emplace_back("caller", MakeMacro(*stmt.macro));
  ASSIGN_OR_RETURN(const Value value, Call(callee, args));
  ASSIGN_OR_RETURN(const std::string text, Text(value));
  return Output(text);
}

absl::StatusOr<Value> Interpreter::CallMacro(const Callable& callable, const Args& args) {
  const MacroNode& macro = *callable.macro;
  if (args.positional.size() > macro.parameters.size()) {
    return absl::InvalidArgumentError(absl::StrCat("macro '", macro.name, "' takes not more than ",
                                                   macro.parameters.size(), " argument(s)"));
  }
  auto scope = std::make_shared<Scope>(Scope{callable.scope, {}});
  for (size_t i = 0; i < args.positional.size(); ++i)
    scope->variables[macro.parameters[i].first] = args.positional[i];
  for (const auto& [name, value] : args.named) {
    const auto parameter = std::find_if(macro.parameters.begin(), macro.parameters.end(),
                                        [&name = name](const auto& p) { return p.first == name; });
    if (parameter != macro.parameters.end()) {
      scope->variables[parameter->first] = value;
    } else if (name == "caller") {
      scope->variables["caller"] = value;
    } else {
      return absl::InvalidArgumentError(
          absl::StrCat("macro '", macro.name, "' takes no keyword argument '", name, "'"));
    }
  }
  std::shared_ptr<Scope> outer = std::exchange(scope_, scope);
  const absl::Cleanup restore = [this, &outer] { scope_ = outer; };
  for (const auto& [name, default_value] : macro.parameters) {
    if (scope->variables.contains(name)) continue;
    Value value{Value::Variant(Undefined{name})};
    if (default_value != nullptr) {
      ASSIGN_OR_RETURN(value, Evaluate(*default_value));
    }
    scope->variables[name] = value;
  }
  ASSIGN_OR_RETURN(std::string text, Capture(macro.body, scope));
  return Value::String(std::move(text));
}

absl::StatusOr<Value> Interpreter::Evaluate(const Expr& expr) {
  const Level level(this);
  RETURN_IF_ERROR(level.status());
  RETURN_IF_ERROR(Charge(0));
  switch (expr.kind) {
    case Expr::Kind::kConst:
      return expr.constant;
    case Expr::Kind::kName:
      return LookUp(expr.name);
    case Expr::Kind::kList:
    case Expr::Kind::kTuple: {
      ASSIGN_OR_RETURN(std::vector<Value> items, EvaluateAll(expr.children));
      return Value::MakeList(std::move(items), expr.kind == Expr::Kind::kTuple);
    }
    case Expr::Kind::kDict:
      return EvaluateDict(expr);
    case Expr::Kind::kConditional: {
      ASSIGN_OR_RETURN(const Value condition, Evaluate(*expr.children[1]));
      if (condition.Truthy()) return Evaluate(*expr.children[0]);
      return expr.children.size() > 2 ? Evaluate(*expr.children[2]) : Value();
    }
    case Expr::Kind::kNot:
    case Expr::Kind::kNegative:
    case Expr::Kind::kPositive:
      return EvaluateUnary(expr);
    case Expr::Kind::kChain:
      return EvaluateChain(expr);
    case Expr::Kind::kPostfix: {
      ASSIGN_OR_RETURN(Value base, Evaluate(*expr.children[0]));
      return ApplyPostfixes(expr, std::move(base));
    }
  }
  return Value();
}

}  // namespace somnus::jinja
