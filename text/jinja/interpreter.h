#pragma once
// Runs a parsed template once. Every operation is charged against one budget of steps, with the bytes and
// elements that the operation reads or makes, so that both time and memory are bounded. One render per
// object; not thread safe.

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "text/jinja/ast.h"
#include "text/jinja/chat_template.h"
#include "text/jinja/value.h"

namespace somnus::jinja {

// Names are views into the template or the context, which outlive the render.
struct Scope {
  std::shared_ptr<Scope> parent;
  absl::flat_hash_map<absl::string_view, Value> variables;
};

struct Args {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;
};

class Interpreter {
 public:
  explicit Interpreter(const ChatTemplateLimits& limits) : limits_(limits) {}
  ~Interpreter();
  Interpreter(const Interpreter&) = delete;
  Interpreter& operator=(const Interpreter&) = delete;

  // `context` is a dict.
  absl::StatusOr<std::string> Render(const Block& block, const Value& context);

  // The rest is for filters, tests, methods and functions.
  // Charges `work` steps; ResourceExhausted when the budget is used up.
  absl::Status Charge(int64_t work);
  absl::Status ChargeBytes(int64_t bytes) { return Charge(bytes / 64); }
  absl::StatusOr<Value> CallFilter(absl::string_view name, const Value& input, const Args& args);
  absl::StatusOr<bool> CallTest(absl::string_view name, const Value& input, const Args& args);
  absl::StatusOr<Value> Call(const Value& callee, const Args& args);
  absl::StatusOr<Value> GetAttribute(const Value& object, absl::string_view name);
  absl::StatusOr<Value> GetItem(const Value& object, const Value& key);
  // Returns the elements that a `for` statement visits; charged per element.
  absl::StatusOr<std::shared_ptr<const List>> Iterate(const Value& value);
  absl::StatusOr<Value> Binary(Operator op, const Value& left, const Value& right);
  absl::StatusOr<bool> Contains(const Value& container, const Value& item);
  absl::StatusOr<bool> CheckedEquals(const Value& a, const Value& b);
  absl::StatusOr<std::string> Text(const Value& value);  // str(), charged
  Value MakeNamespace(Dict attributes);
  void SetRaised() { raised_ = true; }

 private:
  enum class Flow { kNormal, kBreak, kContinue };
  class Level;

  // Statements (interpreter.cc)
  absl::StatusOr<Flow> Run(const Block& block);
  absl::StatusOr<Flow> RunStatement(const Stmt& stmt);
  absl::StatusOr<Flow> RunIf(const Stmt& stmt);
  absl::StatusOr<Flow> RunFor(const Stmt& stmt);
  absl::StatusOr<Flow> RunLoop(const Stmt& stmt, std::shared_ptr<LoopState> loop);
  absl::StatusOr<Flow> RunWith(const Stmt& stmt);
  absl::StatusOr<Flow> RunInScope(const Block& block);
  absl::Status RunCall(const Stmt& stmt);
  absl::StatusOr<std::shared_ptr<const List>> FilterItems(const Stmt& stmt,
                                                          std::shared_ptr<const List> items);
  // Returns the output of a block that runs in `scope`.
  absl::StatusOr<std::string> Capture(const Block& block, std::shared_ptr<Scope> scope);
  absl::Status Output(absl::string_view text);
  absl::Status Assign(const Target& target, const Value& value);
  Value MakeMacro(const MacroNode& macro);
  absl::StatusOr<Value> CallMacro(const Callable& callable, const Args& args);

  // Expressions (evaluate.cc)
  absl::StatusOr<Value> Evaluate(const Expr& expr);
  absl::StatusOr<Value> EvaluateChain(const Expr& expr);
  absl::StatusOr<Value> EvaluateComparison(const Expr& expr);
  absl::StatusOr<Value> EvaluateUnary(const Expr& expr);
  absl::StatusOr<Value> EvaluateDict(const Expr& expr);
  absl::StatusOr<Value> ApplyPostfixes(const Expr& expr, Value value);
  absl::StatusOr<Value> ApplyPostfix(const Postfix& postfix, const Value& value);
  absl::StatusOr<Value> ApplySlice(const Postfix& postfix, const Value& value);
  absl::StatusOr<std::vector<Value>> EvaluateAll(const std::vector<ExprPtr>& exprs);
  absl::StatusOr<Args> EvaluateArgs(const CallArgs& args);
  Value LookUp(absl::string_view name) const;

  const ChatTemplateLimits& limits_;
  int64_t steps_ = 0;
  int depth_ = 0;
  int error_line_ = 0;
  bool raised_ = false;  // the error came from raise_exception: its message is the template's own
  std::string* out_ = nullptr;
  std::shared_ptr<Scope> scope_;
  // Objects that can be parts of cycles, or of chains too long for recursive destruction. The destructor
  // takes these objects apart.
  std::vector<std::shared_ptr<Namespace>> namespaces_;
  std::vector<std::shared_ptr<Scope>> captured_scopes_;
  std::vector<std::shared_ptr<LoopState>> escaped_loops_;
};

// Errors in Python's words; for an undefined value the message names the key that was looked up.
absl::Status TypeError(absl::string_view what, const Value& value);
absl::Status UndefinedError(const Value& value);

}  // namespace somnus::jinja
