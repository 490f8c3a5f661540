#pragma once
// Recursive descent over tokens, with Jinja's grammar and precedence. The nesting of expressions and of
// blocks is limited, and so is the depth of the tree.

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "text/jinja/ast.h"
#include "text/jinja/lexer.h"

namespace somnus::jinja {

// Tokens and a cursor, shared by the parsers of expressions and statements.
class TokenStream {
 public:
  TokenStream(std::vector<Token> tokens, int max_depth) : tokens_(std::move(tokens)), max_depth_(max_depth) {}

  const Token& current() const { return tokens_[pos_]; }
  const Token& Next() { return tokens_[pos_ + 1 < tokens_.size() ? pos_++ : pos_]; }
  bool IsName(absl::string_view name) const;
  bool IsOperator(absl::string_view op) const;
  bool NextIsName(absl::string_view name) const;
  bool SkipName(absl::string_view name);
  bool SkipOperator(absl::string_view op);
  absl::Status ExpectOperator(absl::string_view op);
  absl::StatusOr<std::string> ExpectName();
  absl::Status ExpectBlockEnd();
  absl::Status Unexpected(absl::string_view expected) const;

  // Counts one level of nesting from construction to destruction.
  class Level {
   public:
    explicit Level(TokenStream* stream) : stream_(stream) { ++stream_->depth_; }
    ~Level() { --stream_->depth_; }
    Level(const Level&) = delete;
    Level& operator=(const Level&) = delete;
    absl::Status status() const;

   private:
    TokenStream* stream_;
  };

 private:
  std::vector<Token> tokens_;
  size_t pos_ = 0;
  int depth_ = 0;
  int max_depth_;
};

class ExpressionParser {
 public:
  explicit ExpressionParser(TokenStream* stream) : s_(*stream) {}

  // Parses an expression, or a tuple of expressions without parentheses. `conditional`: "a if b else c" is
  // allowed at the top level.
  absl::StatusOr<ExprPtr> ParseTuple(bool conditional = true);
  absl::StatusOr<ExprPtr> ParseExpression();
  absl::StatusOr<Target> ParseTarget(bool allow_attribute);
  // Parses arguments after "(".
  absl::Status ParseCallArgs(CallArgs* args);
  // Parses "|upper|trim" after `base`.
  absl::StatusOr<ExprPtr> ParseFilters(ExprPtr base);

 private:
  using Rule = absl::StatusOr<ExprPtr> (ExpressionParser::*)();
  using FindOperator = bool (ExpressionParser::*)(Operator*);
  ExprPtr Make(Expr::Kind kind) const;
  absl::StatusOr<ExprPtr> ParseChain(Rule operand, FindOperator find);
  absl::StatusOr<ExprPtr> ParseOr();
  absl::StatusOr<ExprPtr> ParseAnd();
  absl::StatusOr<ExprPtr> ParseNot();
  absl::StatusOr<ExprPtr> ParseCompare();
  absl::StatusOr<ExprPtr> ParseSum();
  absl::StatusOr<ExprPtr> ParseConcat();
  absl::StatusOr<ExprPtr> ParseProduct();
  absl::StatusOr<ExprPtr> ParsePower();
  absl::StatusOr<ExprPtr> ParseUnary();
  absl::StatusOr<ExprPtr> ParseSigned(bool with_filter);
  absl::StatusOr<ExprPtr> ParsePrimary();
  absl::StatusOr<ExprPtr> ParseNamePrimary();
  absl::StatusOr<ExprPtr> ParseNumber();
  absl::StatusOr<ExprPtr> ParseParenthesized();
  absl::StatusOr<ExprPtr> ParseListLiteral();
  absl::StatusOr<ExprPtr> ParseDictLiteral();
  absl::StatusOr<ExprPtr> ParsePostfix(ExprPtr base);
  absl::Status ParseAttribute(Postfix* out);
  absl::Status ParseSubscript(Postfix* out);
  absl::Status ParseFilter(Postfix* out);
  absl::Status ParseTest(Postfix* out);
  bool StartsTestArgument() const;
  bool FindOr(Operator* op);
  bool FindAnd(Operator* op);
  bool FindCompare(Operator* op);
  bool FindSum(Operator* op);
  bool FindConcat(Operator* op);
  bool FindProduct(Operator* op);
  bool FindPower(Operator* op);

  TokenStream& s_;
};

// Parses a whole template. InvalidArgument "line N: reason".
absl::StatusOr<Block> ParseTemplate(const std::string& source, int max_depth);

}  // namespace somnus::jinja
