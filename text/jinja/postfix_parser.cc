#include "absl/status/status.h"
#include "base/status_macros.h"
#include "text/jinja/parser.h"

namespace somnus::jinja {

using TokenKind = Token::Kind;

namespace {

Postfix& AddPostfix(ExprPtr* base, Postfix::Kind kind, ExprPtr wrapper) {
  if ((*base)->kind != Expr::Kind::kPostfix) {
    wrapper->children.push_back(std::move(*base));
    *base = std::move(wrapper);
  }
  (*base)->postfixes.emplace_back();
  (*base)->postfixes.back().kind = kind;
  return (*base)->postfixes.back();
}

}  // namespace

absl::StatusOr<ExprPtr> ExpressionParser::ParsePostfix(ExprPtr base) {
  while (true) {
    if (s_.SkipOperator(".")) {
      RETURN_IF_ERROR(
          ParseAttribute(&AddPostfix(&base, Postfix::Kind::kAttribute, Make(Expr::Kind::kPostfix))));
    } else if (s_.SkipOperator("[")) {
      RETURN_IF_ERROR(ParseSubscript(&AddPostfix(&base, Postfix::Kind::kItem, Make(Expr::Kind::kPostfix))));
    } else if (s_.SkipOperator("(")) {
      RETURN_IF_ERROR(
          ParseCallArgs(&AddPostfix(&base, Postfix::Kind::kCall, Make(Expr::Kind::kPostfix)).args));
    } else {
      return base;
    }
  }
}

absl::StatusOr<ExprPtr> ExpressionParser::ParseFilters(ExprPtr base) {
  while (true) {
    if (s_.SkipOperator("|")) {
      RETURN_IF_ERROR(ParseFilter(&AddPostfix(&base, Postfix::Kind::kFilter, Make(Expr::Kind::kPostfix))));
    } else if (s_.SkipName("is")) {
      RETURN_IF_ERROR(ParseTest(&AddPostfix(&base, Postfix::Kind::kTest, Make(Expr::Kind::kPostfix))));
    } else if (s_.SkipOperator("(")) {  // a call of the value that a filter returned
      RETURN_IF_ERROR(
          ParseCallArgs(&AddPostfix(&base, Postfix::Kind::kCall, Make(Expr::Kind::kPostfix)).args));
    } else {
      return base;
    }
  }
}

absl::Status ExpressionParser::ParseAttribute(Postfix* out) {
  if (s_.current().kind == TokenKind::kInt) {
    out->kind = Postfix::Kind::kItem;
    ASSIGN_OR_RETURN(out->index, ParseNumber());
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(out->name, s_.ExpectName());
  return absl::OkStatus();
}

absl::Status ExpressionParser::ParseSubscript(Postfix* out) {
  if (!s_.IsOperator(":")) {
    ASSIGN_OR_RETURN(out->index, ParseTuple());
    if (s_.SkipOperator("]")) return absl::OkStatus();
  }
  out->kind = Postfix::Kind::kSlice;
  RETURN_IF_ERROR(s_.ExpectOperator(":"));
  if (!s_.IsOperator("]") && !s_.IsOperator(":")) {
    ASSIGN_OR_RETURN(out->stop, ParseExpression());
  }
  if (s_.SkipOperator(":") && !s_.IsOperator("]")) {
    ASSIGN_OR_RETURN(out->step, ParseExpression());
  }
  return s_.ExpectOperator("]");
}

absl::Status ExpressionParser::ParseCallArgs(CallArgs* args) {
  bool first = true;
  while (!s_.IsOperator(")")) {
    if (!first) RETURN_IF_ERROR(s_.ExpectOperator(","));
    if (s_.IsOperator(")")) break;
    first = false;
    TokenStream::Level level(&s_);
    RETURN_IF_ERROR(level.status());
    ASSIGN_OR_RETURN(ExprPtr value, ParseExpression());
    if (value->kind == Expr::Kind::kName && s_.SkipOperator("=")) {
      const std::string name = value->name;
      ASSIGN_OR_RETURN(value, ParseExpression());
      args->named.emplace_back(name, std::move(value));
    } else {
      if (!args->named.empty()) return s_.Unexpected("a keyword argument");
      args->positional.push_back(std::move(value));
    }
  }
  s_.Next();
  return absl::OkStatus();
}

absl::Status ExpressionParser::ParseFilter(Postfix* out) {
  out->kind = Postfix::Kind::kFilter;
  ASSIGN_OR_RETURN(out->name, s_.ExpectName());
  return s_.SkipOperator("(") ? ParseCallArgs(&out->args) : absl::OkStatus();
}

bool ExpressionParser::StartsTestArgument() const {
  switch (s_.current().kind) {
    case TokenKind::kName:
      return !s_.IsName("else") && !s_.IsName("or") && !s_.IsName("and") && !s_.IsName("is") &&
             !s_.IsName("if") && !s_.IsName("not") && !s_.IsName("in");
    case TokenKind::kString:
    case TokenKind::kInt:
    case TokenKind::kFloat:
      return true;
    default:
      return s_.IsOperator("[") || s_.IsOperator("{");
  }
}

absl::Status ExpressionParser::ParseTest(Postfix* out) {
  out->negated = s_.SkipName("not");
  ASSIGN_OR_RETURN(out->name, s_.ExpectName());
  if (s_.SkipOperator("(")) return ParseCallArgs(&out->args);
  if (!StartsTestArgument()) return absl::OkStatus();
  const TokenStream::Level level(&s_);
  RETURN_IF_ERROR(level.status());
  ASSIGN_OR_RETURN(ExprPtr primary, ParsePrimary());
  ASSIGN_OR_RETURN(ExprPtr argument, ParsePostfix(std::move(primary)));
  out->args.positional.push_back(std::move(argument));
  return absl::OkStatus();
}

absl::StatusOr<Target> ExpressionParser::ParseTarget(bool allow_attribute) {
  const auto one = [&]() -> absl::StatusOr<Target> {
    Target target;
    ASSIGN_OR_RETURN(target.name, s_.ExpectName());
    static constexpr absl::string_view kConstants[] = {"true", "True", "false", "False", "none", "None"};
    for (const absl::string_view constant : kConstants) {
      if (target.name == constant) return s_.Unexpected("a name that can be assigned to");
    }
    if (allow_attribute && s_.SkipOperator(".")) {
      ASSIGN_OR_RETURN(target.attribute, s_.ExpectName());
    }
    return target;
  };
  const bool parenthesized = s_.SkipOperator("(");
  ASSIGN_OR_RETURN(Target first, one());
  if (!s_.IsOperator(",")) {
    if (parenthesized) RETURN_IF_ERROR(s_.ExpectOperator(")"));
    return first;
  }
  Target tuple;
  tuple.parts.push_back(std::move(first));
  while (s_.SkipOperator(",") && s_.current().kind == TokenKind::kName && !s_.IsName("in")) {
    ASSIGN_OR_RETURN(Target next, one());
    tuple.parts.push_back(std::move(next));
  }
  if (parenthesized) RETURN_IF_ERROR(s_.ExpectOperator(")"));
  return tuple;
}

}  // namespace somnus::jinja
