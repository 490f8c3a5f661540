#pragma once
// The parsed template. Chains of operators are flat (an expression of a thousand terms is one node), so that
// the depth of the tree is bounded by the parser's depth limit. Immutable after parsing.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "text/jinja/value.h"

namespace somnus::jinja {

struct Expr;
using ExprPtr = std::unique_ptr<Expr>;

enum class Operator {
  kAdd,
  kSub,
  kMul,
  kDiv,
  kFloorDiv,
  kMod,
  kPow,
  kConcat,
  kAnd,
  kOr,
  kEq,
  kNe,
  kLt,
  kLe,
  kGt,
  kGe,
  kIn,
  kNotIn
};

struct CallArgs {
  std::vector<ExprPtr> positional;
  std::vector<std::pair<std::string, ExprPtr>> named;
};

// An operation on the preceding value: .name, [index], [a:b:c], (args), |filter(args), is [not] test(args).
struct Postfix {
  enum class Kind { kAttribute, kItem, kSlice, kCall, kFilter, kTest };
  Kind kind;
  std::string name;
  bool negated = false;
  ExprPtr index, stop, step;  // kItem uses index; kSlice's parts may be null
  CallArgs args;
};

struct Expr {
  enum class Kind {
    kConst,
    kName,
    kList,
    kTuple,
    kDict,
    kConditional,
    kNot,
    kNegative,
    kPositive,
    kChain,
    kPostfix
  };
  Kind kind;
  int line = 0;
  Value constant;
  std::string name;
  std::vector<ExprPtr> children;    // list and tuple items; key, value, ...; then, condition, else; operands
  std::vector<Operator> operators;  // kChain: between children
  std::vector<Postfix> postfixes;
};

struct Stmt;
using Block = std::vector<std::unique_ptr<Stmt>>;

// The target of `for` and `set`: a name, several names (unpacking), or an attribute of a namespace.
struct Target {
  std::vector<Target> parts;  // unpacking; otherwise empty
  std::string name, attribute;
};

struct MacroNode {
  std::string name;
  std::vector<std::pair<std::string, ExprPtr>> parameters;  // name and default; null: there is none
  Block body;
};

struct Stmt {
  enum class Kind {
    kText,
    kOutput,
    kIf,
    kFor,
    kSet,
    kSetBlock,
    kMacro,
    kCall,
    kFilter,
    kWith,
    kScope,
    kBreak,
    kContinue
  };
  Kind kind;
  int line = 0;
  std::string text;
  ExprPtr expr;       // output, set, for (iterable), call, filter
  ExprPtr condition;  // for ... if
  Target target;
  Block body, otherwise;
  std::vector<std::pair<ExprPtr, Block>> branches;   // if, elif
  std::vector<std::pair<Target, ExprPtr>> bindings;  // with
  std::unique_ptr<MacroNode> macro;                  // macro; call: the caller
};

}  // namespace somnus::jinja
