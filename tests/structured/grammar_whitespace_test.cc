// White space between the tokens of JSON: as much as a limit allows, as much as the layout of a request
// allows, or none.

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "proto/limits.h"
#include "tests/structured/grammar_fixture.h"

namespace somnus {
namespace {

class GrammarWhitespace : public Grammars {
 protected:
  // Walks through two grammars, mostly along white space and quotes, and compares their masks.
  void WalkBeside(const CompiledGrammar& grammar, const CompiledGrammar& oracle_grammar, uint32_t seed) {
    std::mt19937 random(seed);
    const auto matcher = *grammar.NewMatcher(), oracle = *oracle_grammar.NewMatcher();
    std::string text;
    for (int step = 0; step < 40 && !matcher->IsTerminated(); ++step) {
      const std::set<int32_t> allowed = Allowed(matcher.get());
      ASSERT_EQ(Difference(allowed, Allowed(oracle.get())), "") << "after '" << text << "'";
      std::vector<int32_t> next(allowed.begin(), allowed.end());
      const auto others = std::partition(next.begin(), next.end(), [this](int32_t token) {
        return vocabulary_.token_bytes[static_cast<size_t>(token)].find_first_of(" \n\"") !=
               std::string::npos;
      });
      if (others != next.begin() && random() % 4 != 0) next.erase(others, next.end());
      const int32_t token = next[random() % next.size()];
      ASSERT_EQ(matcher->Accept(token), absl::OkStatus()) << text;
      ASSERT_EQ(oracle->Accept(token), absl::OkStatus()) << text;
      text += vocabulary_.token_bytes[static_cast<size_t>(token)];
    }
  }
};

TEST_F(GrammarWhitespace, WithAnyWhitespaceAndWithout) {
  GrammarSource source =
      SourceOf(GrammarKind::kJsonSchema, R"({"type": "array", "items": {"type": "integer"}})");
  const auto any = Compile(source);
  EXPECT_TRUE(Matches(*any, "[1, \n 2 ]"));
  EXPECT_FALSE(Matches(*any, "[1," + std::string(41, ' ') + "2]")) << "the limits hold";
  EXPECT_TRUE(Matches(*any, "[1," + std::string(40, '\n') + "2]"));
  source.layout.max_whitespace = 2;
  const auto some = Compile(source);
  EXPECT_TRUE(Matches(*some, "[1,  2]"));
  EXPECT_FALSE(Matches(*some, "[1,   2]"));
  source.layout = {.any_whitespace = false};
  const auto fixed = Compile(source);
  EXPECT_TRUE(Matches(*fixed, "[1, 2]"));
  EXPECT_FALSE(Matches(*fixed, "[1,  2]"));
}

// xgrammar counts the white space of schemas in structural tags itself.
TEST_F(GrammarWhitespace, MasksWithBoundedWhitespaceAreThoseOfAGrammarThatCounts) {
  const std::string schema =
      R"({"type": "object", "properties": {"a": {"type": "string"}, "ab": {"type": "array", "items": {"type": "string"}}},
          "additionalProperties": false})";
  for (const int32_t most : {1, 2, 3, 5}) {
    GrammarSource source = SourceOf(GrammarKind::kJsonSchema, schema);
    source.layout.max_whitespace = most;
    const auto bounded = Compile(source);
    const auto counted = Compile(
        GrammarKind::kStructuralTag,
        absl::StrCat(R"({"type": "structural_tag", "format": {"type": "json_schema", "json_schema": )",
                     schema, R"(, "max_whitespace_cnt": )", most, "}}"));
    ASSERT_TRUE(bounded != nullptr && counted != nullptr);
    for (uint32_t seed = 0; seed < 20; ++seed) WalkBeside(*bounded, *counted, seed);
  }
}

TEST_F(GrammarWhitespace, BoundedWhitespaceIsCountedOutsideOfStringsAlone) {
  GrammarSource source = SourceOf(GrammarKind::kJsonObject, "");
  source.layout.max_whitespace = 2;
  const auto grammar = Compile(source);
  EXPECT_TRUE(Matches(*grammar, R"({  "a     \"    b  "  :  1  })"));
  EXPECT_FALSE(Matches(*grammar, R"({"a \"":   1})"));
  EXPECT_FALSE(Matches(*grammar, R"({"a\\":   1})")) << "the string ends behind an escaped backslash";
  const auto matcher = *grammar->NewMatcher();
  ASSERT_TRUE(AcceptBytes(matcher.get(), "{  ").ok());
  EXPECT_EQ(matcher->Accept(' ').code(), absl::StatusCode::kInvalidArgument);
  const std::set<int32_t> full = Allowed(matcher.get());
  EXPECT_FALSE(full.contains(' '));
  EXPECT_TRUE(full.contains('"'));
  const auto fork = *matcher->Fork();
  EXPECT_EQ(Allowed(fork.get()), full);
  ASSERT_TRUE(matcher->Rollback(1).ok());
  EXPECT_TRUE(Allowed(matcher.get()).contains('\n'));
  ASSERT_TRUE(matcher->Accept('\t').ok());
  EXPECT_EQ(Allowed(matcher.get()), full);
  ASSERT_TRUE(AcceptBytes(fork.get(), R"("b":1})").ok());
  EXPECT_TRUE(fork->IsComplete());
}

TEST_F(GrammarWhitespace, BoundedWhitespaceIsKnownAfterTheMostTokensAreTakenBack) {
  GrammarSource source = SourceOf(GrammarKind::kJsonObject, "");
  source.layout.max_whitespace = 4;
  const auto matcher = *Compile(source)->NewMatcher();
  const auto accept = [&matcher](char byte) { return matcher->Accept(byte).code(); };
  for (const char byte : std::string("{   ")) ASSERT_EQ(accept(byte), absl::StatusCode::kOk);
  for (const char byte : "\"" + std::string(size_t{kMaxSpeculativeTokens} - 1, 'a'))
    ASSERT_EQ(accept(byte), absl::StatusCode::kOk);
  EXPECT_EQ(matcher->Rollback(kMaxSpeculativeTokens + 1).code(), absl::StatusCode::kInvalidArgument);
  ASSERT_EQ(matcher->Rollback(kMaxSpeculativeTokens), absl::OkStatus());
  EXPECT_EQ(accept('\n'), absl::StatusCode::kOk);
  EXPECT_EQ(accept('\n'), absl::StatusCode::kInvalidArgument);
}

TEST_F(GrammarWhitespace, WhitespaceIsBoundedInTheSchemasOfAStructuralTag) {
  const std::string schema = R"({"type": "object", "properties": {"json_schema": {"type": "integer"}}})";
  const std::string tag = R"({"type": "structural_tag", "format": {"type": "tag", "begin": "<", "content":
      {"type": "json_schema", "json_schema": )" +
                          schema + R"(}, "end": ">"}})";
  GrammarLimits limits;
  limits.max_whitespace = 3;
  const auto bounded = SmallCompiler(limits)->Compile(SourceOf(GrammarKind::kStructuralTag, tag));
  ASSERT_TRUE(bounded.ok()) << bounded.status();
  EXPECT_TRUE(Matches(**bounded, R"(<{"json_schema":   1}>)"));
  EXPECT_FALSE(Matches(**bounded, R"(<{"json_schema":    1}>)"));
  limits.max_whitespace = 0;
  const auto free = SmallCompiler(limits)->Compile(SourceOf(GrammarKind::kStructuralTag, tag));
  ASSERT_TRUE(free.ok()) << free.status();
  EXPECT_TRUE(Matches(**free, R"(<{"json_schema":)" + std::string(100, ' ') + "1}>"));
}

}  // namespace
}  // namespace somnus
