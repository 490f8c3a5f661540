#include <charconv>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "text/jinja/parser.h"
#include "text/jinja/text.h"

namespace somnus::jinja {

using TokenKind = Token::Kind;

ExprPtr ExpressionParser::Make(Expr::Kind kind) const {
  auto expr = std::make_unique<Expr>();
  expr->kind = kind;
  expr->line = s_.current().line;
  return expr;
}

absl::StatusOr<ExprPtr> ExpressionParser::ParseTuple(bool conditional) {
  const auto item = [&] { return conditional ? ParseExpression() : ParseOr(); };
  ASSIGN_OR_RETURN(ExprPtr first, item());
  if (!s_.IsOperator(",")) return first;
  ExprPtr tuple = Make(Expr::Kind::kTuple);
  tuple->children.push_back(std::move(first));
  while (s_.SkipOperator(",")) {
    const bool ends = s_.current().kind == TokenKind::kBlockEnd ||
                      s_.current().kind == TokenKind::kOutputEnd || s_.IsOperator(")") || s_.IsName("in");
    if (ends) break;
    ASSIGN_OR_RETURN(ExprPtr next, item());
    tuple->children.push_back(std::move(next));
  }
  return tuple;
}

absl::StatusOr<ExprPtr> ExpressionParser::ParseExpression() {
  const TokenStream::Level level(&s_);
  RETURN_IF_ERROR(level.status());
  ASSIGN_OR_RETURN(ExprPtr value, ParseOr());
  while (s_.SkipName("if")) {
    ExprPtr conditional = Make(Expr::Kind::kConditional);
    ASSIGN_OR_RETURN(ExprPtr condition, ParseOr());
    conditional->children.push_back(std::move(value));
    conditional->children.push_back(std::move(condition));
    if (s_.SkipName("else")) {
      ASSIGN_OR_RETURN(ExprPtr otherwise, ParseExpression());
      conditional->children.push_back(std::move(otherwise));
      return conditional;
    }
    value = std::move(conditional);
    // In "a if b if c" each `if` nests what precedes it, one level deeper.
    RETURN_IF_ERROR(s_.IsName("if") ? s_.Unexpected("else") : absl::OkStatus());
  }
  return value;
}

absl::StatusOr<ExprPtr> ExpressionParser::ParseChain(Rule operand, FindOperator find) {
  ASSIGN_OR_RETURN(ExprPtr first, (this->*operand)());
  Operator op;
  if (!(this->*find)(&op)) return first;
  ExprPtr chain = Make(Expr::Kind::kChain);
  chain->children.push_back(std::move(first));
  do {
    ASSIGN_OR_RETURN(ExprPtr next, (this->*operand)());
    chain->operators.push_back(op);
    chain->children.push_back(std::move(next));
  } while ((this->*find)(&op));
  return chain;
}

bool ExpressionParser::FindOr(Operator* op) { return *op = Operator::kOr, s_.SkipName("or"); }
bool ExpressionParser::FindAnd(Operator* op) { return *op = Operator::kAnd, s_.SkipName("and"); }
bool ExpressionParser::FindConcat(Operator* op) { return *op = Operator::kConcat, s_.SkipOperator("~"); }
bool ExpressionParser::FindPower(Operator* op) { return *op = Operator::kPow, s_.SkipOperator("**"); }

bool ExpressionParser::FindSum(Operator* op) {
  if (s_.SkipOperator("+")) return *op = Operator::kAdd, true;
  return *op = Operator::kSub, s_.SkipOperator("-");
}

bool ExpressionParser::FindProduct(Operator* op) {
  if (s_.SkipOperator("*")) return *op = Operator::kMul, true;
  if (s_.SkipOperator("/")) return *op = Operator::kDiv, true;
  if (s_.SkipOperator("//")) return *op = Operator::kFloorDiv, true;
  return *op = Operator::kMod, s_.SkipOperator("%");
}

bool ExpressionParser::FindCompare(Operator* op) {
  static constexpr std::pair<absl::string_view, Operator> kOperators[] = {
      {"==", Operator::kEq}, {"!=", Operator::kNe}, {"<", Operator::kLt},
      {"<=", Operator::kLe}, {">", Operator::kGt},  {">=", Operator::kGe}};
  for (const auto& [text, value] : kOperators) {
    if (s_.SkipOperator(text)) return *op = value, true;
  }
  if (s_.SkipName("in")) return *op = Operator::kIn, true;
  if (!s_.IsName("not") || !s_.NextIsName("in")) return false;
  s_.Next();
  s_.Next();
  return *op = Operator::kNotIn, true;
}

absl::StatusOr<ExprPtr> ExpressionParser::ParseOr() {
  return ParseChain(&ExpressionParser::ParseAnd, &ExpressionParser::FindOr);
}
absl::StatusOr<ExprPtr> ExpressionParser::ParseAnd() {
  return ParseChain(&ExpressionParser::ParseNot, &ExpressionParser::FindAnd);
}

absl::StatusOr<ExprPtr> ExpressionParser::ParseNot() {
  if (!s_.IsName("not")) return ParseCompare();
  const TokenStream::Level level(&s_);
  RETURN_IF_ERROR(level.status());
  ExprPtr expr = Make(Expr::Kind::kNot);
  s_.Next();
  ASSIGN_OR_RETURN(ExprPtr operand, ParseNot());
  expr->children.push_back(std::move(operand));
  return expr;
}

absl::StatusOr<ExprPtr> ExpressionParser::ParseCompare() {
  return ParseChain(&ExpressionParser::ParseSum, &ExpressionParser::FindCompare);
}
absl::StatusOr<ExprPtr> ExpressionParser::ParseSum() {
  return ParseChain(&ExpressionParser::ParseConcat, &ExpressionParser::FindSum);
}
absl::StatusOr<ExprPtr> ExpressionParser::ParseConcat() {
  return ParseChain(&ExpressionParser::ParseProduct, &ExpressionParser::FindConcat);
}
absl::StatusOr<ExprPtr> ExpressionParser::ParseProduct() {
  return ParseChain(&ExpressionParser::ParsePower, &ExpressionParser::FindProduct);
}
absl::StatusOr<ExprPtr> ExpressionParser::ParsePower() {
  return ParseChain(&ExpressionParser::ParseUnary, &ExpressionParser::FindPower);
}
absl::StatusOr<ExprPtr> ExpressionParser::ParseUnary() { return ParseSigned(true); }

absl::StatusOr<ExprPtr> ExpressionParser::ParseSigned(bool with_filter) {
  ExprPtr expr;
  if (s_.IsOperator("-") || s_.IsOperator("+")) {
    const TokenStream::Level level(&s_);
    RETURN_IF_ERROR(level.status());
    expr = Make(s_.IsOperator("-") ? Expr::Kind::kNegative : Expr::Kind::kPositive);
    s_.Next();
    ASSIGN_OR_RETURN(ExprPtr operand, ParseSigned(false));
    expr->children.push_back(std::move(operand));
  } else {
    ASSIGN_OR_RETURN(expr, ParsePrimary());
  }
  ASSIGN_OR_RETURN(expr, ParsePostfix(std::move(expr)));
  return with_filter ? ParseFilters(std::move(expr)) : std::move(expr);
}

absl::StatusOr<ExprPtr> ExpressionParser::ParsePrimary() {
  switch (s_.current().kind) {
    case TokenKind::kName:
      return ParseNamePrimary();
    case TokenKind::kInt:
    case TokenKind::kFloat:
      return ParseNumber();
    case TokenKind::kString: {
      ExprPtr expr = Make(Expr::Kind::kConst);
      std::string text;
      while (s_.current().kind == TokenKind::kString) text += s_.Next().text;
      expr->constant = Value::String(std::move(text));
      return expr;
    }
    default:
      break;
  }
  if (s_.IsOperator("(")) return ParseParenthesized();
  if (s_.IsOperator("[")) return ParseListLiteral();
  if (s_.IsOperator("{")) return ParseDictLiteral();
  return s_.Unexpected("an expression");
}

absl::StatusOr<ExprPtr> ExpressionParser::ParseNamePrimary() {
  ExprPtr expr = Make(Expr::Kind::kConst);
  const std::string name = s_.Next().text;
  if (name == "true" || name == "True") {
    expr->constant = Value::Bool(true);
  } else if (name == "false" || name == "False") {
    expr->constant = Value::Bool(false);
  } else if (name == "none" || name == "None") {
    expr->constant = Value::OfNone();
  } else {
    expr->kind = Expr::Kind::kName;
    expr->name = name;
  }
  return expr;
}

absl::StatusOr<ExprPtr> ExpressionParser::ParseNumber() {
  ExprPtr expr = Make(Expr::Kind::kConst);
  const Token token = s_.Next();
  if (token.kind == TokenKind::kFloat) {
    const std::optional<double> value = ParseFloat(token.text);
    if (!value) return s_.Unexpected("a number");
    expr->constant = Value::Float(*value);
  } else {
    const std::optional<int64_t> value = ParseInt(token.text, 0);
    if (!value) {
      return absl::InvalidArgumentError(
          absl::StrCat("line ", token.line, ": number ", token.text, " is too large"));
    }
    expr->constant = Value::Int(*value);
  }
  return expr;
}

absl::StatusOr<ExprPtr> ExpressionParser::ParseParenthesized() {
  s_.Next();
  if (s_.SkipOperator(")")) return Make(Expr::Kind::kTuple);
  ASSIGN_OR_RETURN(ExprPtr expr, ParseTuple());
  RETURN_IF_ERROR(s_.ExpectOperator(")"));
  return expr;
}

absl::StatusOr<ExprPtr> ExpressionParser::ParseListLiteral() {
  ExprPtr expr = Make(Expr::Kind::kList);
  s_.Next();
  while (!s_.IsOperator("]")) {
    if (!expr->children.empty()) RETURN_IF_ERROR(s_.ExpectOperator(","));
    if (s_.IsOperator("]")) break;
    ASSIGN_OR_RETURN(ExprPtr item, ParseExpression());
    expr->children.push_back(std::move(item));
  }
  s_.Next();
  return expr;
}

absl::StatusOr<ExprPtr> ExpressionParser::ParseDictLiteral() {
  ExprPtr expr = Make(Expr::Kind::kDict);
  s_.Next();
  while (!s_.IsOperator("}")) {
    if (!expr->children.empty()) RETURN_IF_ERROR(s_.ExpectOperator(","));
    if (s_.IsOperator("}")) break;
    ASSIGN_OR_RETURN(ExprPtr key, ParseExpression());
    RETURN_IF_ERROR(s_.ExpectOperator(":"));
    ASSIGN_OR_RETURN(ExprPtr value, ParseExpression());
    expr->children.push_back(std::move(key));
    expr->children.push_back(std::move(value));
  }
  s_.Next();
  return expr;
}

}  // namespace somnus::jinja
