#include "text/jinja/parser.h"

#include <initializer_list>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace somnus::jinja {

using TokenKind = Token::Kind;

bool TokenStream::IsName(absl::string_view name) const {
  return current().kind == TokenKind::kName && current().text == name;
}
bool TokenStream::IsOperator(absl::string_view op) const {
  return current().kind == TokenKind::kOperator && current().text == op;
}
bool TokenStream::NextIsName(absl::string_view name) const {
  return pos_ + 1 < tokens_.size() && tokens_[pos_ + 1].kind == TokenKind::kName &&
         tokens_[pos_ + 1].text == name;
}
bool TokenStream::SkipName(absl::string_view name) { return IsName(name) && (Next(), true); }
bool TokenStream::SkipOperator(absl::string_view op) { return IsOperator(op) && (Next(), true); }

absl::Status TokenStream::ExpectOperator(absl::string_view op) {
  return SkipOperator(op) ? absl::OkStatus() : Unexpected(absl::StrCat("'", op, "'"));
}

absl::StatusOr<std::string> TokenStream::ExpectName() {
  if (current().kind != TokenKind::kName) return Unexpected("a name");
  return Next().text;
}

absl::Status TokenStream::ExpectBlockEnd() {
  if (current().kind != TokenKind::kBlockEnd) return Unexpected("end of statement block");
  Next();
  return absl::OkStatus();
}

absl::Status TokenStream::Unexpected(absl::string_view expected) const {
  std::string found = current().text.substr(0, 40);
  if (current().kind == TokenKind::kEnd) found = "end of template";
  if (current().kind == TokenKind::kBlockEnd) found = "%}";
  if (current().kind == TokenKind::kOutputEnd) found = "}}";
  return absl::InvalidArgumentError(
      absl::StrCat("line ", current().line, ": expected ", expected, ", got '", found, "'"));
}

absl::Status TokenStream::Level::status() const {
  if (stream_->depth_ <= stream_->max_depth_) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("line ", stream_->current().line, ": the template nests too deep"));
}

namespace {

class StatementParser {
 public:
  explicit StatementParser(TokenStream* stream) : s_(*stream), expressions_(stream) {}

  absl::StatusOr<Block> ParseAll() {
    ASSIGN_OR_RETURN(Block block, ParseBlock({}));
    if (s_.current().kind != TokenKind::kEnd) return s_.Unexpected("end of template");
    return block;
  }

 private:
  using StmtPtr = std::unique_ptr<Stmt>;

  StmtPtr Make(Stmt::Kind kind) const {
    auto stmt = std::make_unique<Stmt>();
    stmt->kind = kind;
    stmt->line = s_.current().line;
    return stmt;
  }

  // Parses statements up to a tag whose name is one of `ends`; the cursor is then on that name.
  absl::StatusOr<Block> ParseBlock(std::initializer_list<absl::string_view> ends) {
    const TokenStream::Level level(&s_);
    RETURN_IF_ERROR(level.status());
    Block block;
    while (s_.current().kind != TokenKind::kEnd) {
      if (s_.current().kind == TokenKind::kText) {
        block.push_back(Make(Stmt::Kind::kText));
        block.back()->text = s_.Next().text;
      } else if (s_.current().kind == TokenKind::kOutputBegin) {
        s_.Next();
        block.push_back(Make(Stmt::Kind::kOutput));
        ASSIGN_OR_RETURN(block.back()->expr, expressions_.ParseTuple());
        if (s_.current().kind != TokenKind::kOutputEnd) return s_.Unexpected("end of print statement");
        s_.Next();
      } else {
        s_.Next();
        for (const absl::string_view end : ends) {
          if (s_.IsName(end)) return block;
        }
        ASSIGN_OR_RETURN(StmtPtr stmt, ParseStatement());
        block.push_back(std::move(stmt));
      }
    }
    if (ends.size() > 0) return s_.Unexpected(absl::StrCat("'", *ends.begin(), "'"));
    return block;
  }

  // Parses a body and its end tag; the cursor is before the "%}" of the opening tag.
  absl::StatusOr<Block> ParseBody(absl::string_view end) {
    RETURN_IF_ERROR(s_.ExpectBlockEnd());
    ASSIGN_OR_RETURN(Block body, ParseBlock({end}));
    s_.Next();
    RETURN_IF_ERROR(s_.ExpectBlockEnd());
    return body;
  }

  absl::StatusOr<StmtPtr> ParseStatement() {
    if (s_.SkipName("if")) return ParseIf();
    if (s_.SkipName("for")) return ParseFor();
    if (s_.SkipName("set")) return ParseSet();
    if (s_.SkipName("macro")) return ParseMacro();
    if (s_.SkipName("call")) return ParseCall();
    if (s_.SkipName("filter")) return ParseFilterBlock();
    if (s_.SkipName("with")) return ParseWith();
    if (s_.SkipName("generation")) {
      StmtPtr stmt = Make(Stmt::Kind::kScope);
      ASSIGN_OR_RETURN(stmt->body, ParseBody("endgeneration"));
      return stmt;
    }
    const bool is_break = s_.IsName("break");
    if (is_break || s_.IsName("continue")) {
      if (loops_ == 0) return s_.Unexpected("a statement outside of loops");
      StmtPtr stmt = Make(is_break ? Stmt::Kind::kBreak : Stmt::Kind::kContinue);
      s_.Next();
      RETURN_IF_ERROR(s_.ExpectBlockEnd());
      return stmt;
    }
    return s_.Unexpected("a known tag");
  }

  absl::StatusOr<StmtPtr> ParseIf() {
    StmtPtr stmt = Make(Stmt::Kind::kIf);
    do {
      ASSIGN_OR_RETURN(ExprPtr condition, expressions_.ParseTuple(false));
      RETURN_IF_ERROR(s_.ExpectBlockEnd());
      ASSIGN_OR_RETURN(Block body, ParseBlock({"endif", "elif", "else"}));
      stmt->branches.emplace_back(std::move(condition), std::move(body));
    } while (s_.SkipName("elif"));
    if (s_.SkipName("else")) {
      RETURN_IF_ERROR(s_.ExpectBlockEnd());
      ASSIGN_OR_RETURN(stmt->otherwise, ParseBlock({"endif"}));
    }
    s_.Next();
    RETURN_IF_ERROR(s_.ExpectBlockEnd());
    return stmt;
  }

  absl::StatusOr<StmtPtr> ParseFor() {
    StmtPtr stmt = Make(Stmt::Kind::kFor);
    ASSIGN_OR_RETURN(stmt->target, expressions_.ParseTarget(false));
    if (!s_.SkipName("in")) return s_.Unexpected("'in'");
    ASSIGN_OR_RETURN(stmt->expr, expressions_.ParseTuple(false));
    if (s_.SkipName("if")) {
      ASSIGN_OR_RETURN(stmt->condition, expressions_.ParseExpression());
    }
    RETURN_IF_ERROR(s_.ExpectBlockEnd());
    ++loops_;
    absl::StatusOr<Block> body = ParseBlock({"endfor", "else"});
    --loops_;
    ASSIGN_OR_RETURN(stmt->body, std::move(body));
    if (s_.SkipName("else")) {
      RETURN_IF_ERROR(s_.ExpectBlockEnd());
      ASSIGN_OR_RETURN(stmt->otherwise, ParseBlock({"endfor"}));
    }
    s_.Next();
    RETURN_IF_ERROR(s_.ExpectBlockEnd());
    return stmt;
  }

  absl::StatusOr<StmtPtr> ParseSet() {
    StmtPtr stmt = Make(Stmt::Kind::kSet);
    ASSIGN_OR_RETURN(stmt->target, expressions_.ParseTarget(true));
    if (s_.SkipOperator("=")) {
      ASSIGN_OR_RETURN(stmt->expr, expressions_.ParseTuple());
      RETURN_IF_ERROR(s_.ExpectBlockEnd());
      return stmt;
    }
    stmt->kind = Stmt::Kind::kSetBlock;
    ASSIGN_OR_RETURN(stmt->expr, ParseFilterChain());
    ASSIGN_OR_RETURN(stmt->body, ParseBody("endset"));
    return stmt;
  }

  // Parses "|a|b" with an empty constant as input; the interpreter puts the block's text in the place of the
  // constant.
  absl::StatusOr<ExprPtr> ParseFilterChain() {
    auto base = std::make_unique<Expr>();
    base->kind = Expr::Kind::kConst;
    base->line = s_.current().line;
    return expressions_.ParseFilters(std::move(base));
  }

  absl::Status ParseParameters(MacroNode* macro) {
    if (!s_.SkipOperator("(")) return absl::OkStatus();
    while (!s_.IsOperator(")")) {
      if (!macro->parameters.empty()) RETURN_IF_ERROR(s_.ExpectOperator(","));
      if (s_.IsOperator(")")) break;
      ASSIGN_OR_RETURN(std::string name, s_.ExpectName());
      ExprPtr default_value;
      if (s_.SkipOperator("=")) {
        ASSIGN_OR_RETURN(default_value, expressions_.ParseExpression());
      }
      macro->parameters.emplace_back(std::move(name), std::move(default_value));
    }
    s_.Next();
    return absl::OkStatus();
  }

  absl::Status ParseMacroBody(MacroNode* macro, absl::string_view end) {
    const int loops = loops_;
    loops_ = 0;  // `break` in a macro cannot end a loop around the macro
    absl::StatusOr<Block> body = ParseBody(end);
    loops_ = loops;
    ASSIGN_OR_RETURN(macro->body, std::move(body));
    return absl::OkStatus();
  }

  absl::StatusOr<StmtPtr> ParseMacro() {
    StmtPtr stmt = Make(Stmt::Kind::kMacro);
    stmt->macro = std::make_unique<MacroNode>();
    ASSIGN_OR_RETURN(stmt->macro->name, s_.ExpectName());
    RETURN_IF_ERROR(ParseParameters(stmt->macro.get()));
    RETURN_IF_ERROR(ParseMacroBody(stmt->macro.get(), "endmacro"));
    return stmt;
  }

  absl::StatusOr<StmtPtr> ParseCall() {
    StmtPtr stmt = Make(Stmt::Kind::kCall);
    stmt->macro = std::make_unique<MacroNode>();
    stmt->macro->name = "caller";
    RETURN_IF_ERROR(ParseParameters(stmt->macro.get()));
    ASSIGN_OR_RETURN(stmt->expr, expressions_.ParseExpression());
    const bool is_call =
        stmt->expr->kind == Expr::Kind::kPostfix && stmt->expr->postfixes.back().kind == Postfix::Kind::kCall;
    if (!is_call) return s_.Unexpected("a call");
    RETURN_IF_ERROR(ParseMacroBody(stmt->macro.get(), "endcall"));
    return stmt;
  }

  absl::StatusOr<StmtPtr> ParseFilterBlock() {
    StmtPtr stmt = Make(Stmt::Kind::kFilter);
    auto base = std::make_unique<Expr>();
    base->kind = Expr::Kind::kConst;
    auto chain = std::make_unique<Expr>();
    chain->kind = Expr::Kind::kPostfix;
    chain->children.push_back(std::move(base));
    chain->postfixes.emplace_back();
    chain->postfixes[0].kind = Postfix::Kind::kFilter;
    ASSIGN_OR_RETURN(chain->postfixes[0].name, s_.ExpectName());
    if (s_.SkipOperator("(")) RETURN_IF_ERROR(expressions_.ParseCallArgs(&chain->postfixes[0].args));
    ASSIGN_OR_RETURN(stmt->expr, expressions_.ParseFilters(std::move(chain)));
    ASSIGN_OR_RETURN(stmt->body, ParseBody("endfilter"));
    return stmt;
  }

  absl::StatusOr<StmtPtr> ParseWith() {
    StmtPtr stmt = Make(Stmt::Kind::kWith);
    while (s_.current().kind != TokenKind::kBlockEnd) {
      if (!stmt->bindings.empty()) RETURN_IF_ERROR(s_.ExpectOperator(","));
      ASSIGN_OR_RETURN(Target target, expressions_.ParseTarget(false));
      RETURN_IF_ERROR(s_.ExpectOperator("="));
      ASSIGN_OR_RETURN(ExprPtr value, expressions_.ParseExpression());
      stmt->bindings.emplace_back(std::move(target), std::move(value));
    }
    ASSIGN_OR_RETURN(stmt->body, ParseBody("endwith"));
    return stmt;
  }

  TokenStream& s_;
  ExpressionParser expressions_;
  int loops_ = 0;
};

}  // namespace

absl::StatusOr<Block> ParseTemplate(const std::string& source, int max_depth) {
  ASSIGN_OR_RETURN(std::vector<Token> tokens, Tokenize(source));
  TokenStream stream(std::move(tokens), max_depth);
  return StatementParser(&stream).ParseAll();
}

}  // namespace somnus::jinja
