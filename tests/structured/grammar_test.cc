// The texts that grammars allow, how a matcher goes forward and back, and the sources that are refused.

#include "coordinator/structured/grammar.h"

#include <nlohmann/json.hpp>
#include <set>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "coordinator/structured/schema_brackets.h"
#include "coordinator/structured/schema_gate.h"
#include "coordinator/structured/schema_named_members.h"
#include "coordinator/structured/xgrammar_compiler.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/structured/grammar_fixture.h"

namespace somnus {
namespace {

using ::testing::HasSubstr;

TEST_F(Grammars, RepetitionsAreCounted) {
  const auto times = [](int count, const std::string& text) {
    std::string all;
    for (int i = 0; i < count; ++i) all += text;
    return all;
  };
  for (const std::string part : {"a", "bc"}) {
    for (const auto& [min, max] : {std::pair{0, 1},
                                   {1, 1},
                                   {2, 7},
                                   {0, 127},
                                   {0, 128},
                                   {64, 191},
                                   {130, 131},
                                   {128, 256},
                                   {1000, 5000}}) {
      SCOPED_TRACE(absl::StrCat(part, " ", min, " to ", max));
      const auto grammar = Compile(GrammarKind::kRegex, absl::StrCat("x(a|bc){", min, ",", max, "}y"));
      ASSERT_NE(grammar, nullptr);
      if (min > 0) {
        EXPECT_FALSE(Matches(*grammar, "x" + times(min - 1, part) + "y"));
      }
      EXPECT_TRUE(Matches(*grammar, "x" + times(min, part) + "y"));
      EXPECT_TRUE(Matches(*grammar, "x" + times(max, part) + "y"));
      EXPECT_FALSE(Matches(*grammar, "x" + times(max + 1, part) + "y"));
    }
  }
  // Without an upper bound, with classes, and with a starred class, of which no automaton may be made.
  for (const char* unit : {"(a|bc)", "([^b-z]|bc)", "(a|b[^a]*c)"}) {
    const auto grammar = Compile(GrammarKind::kRegex, absl::StrCat("x", unit, "{200,}y"));
    ASSERT_NE(grammar, nullptr);
    EXPECT_FALSE(Matches(*grammar, "x" + times(199, "a") + "y")) << unit;
    EXPECT_FALSE(Matches(*grammar, "x" + times(150, "bc") + "y")) << unit;
    EXPECT_TRUE(Matches(*grammar, "x" + times(150, "bca") + "y")) << unit;
    EXPECT_TRUE(Matches(*grammar, "x" + times(900, "a") + "y")) << unit;
  }
  const auto several = Compile(GrammarKind::kRegex, "(a|bc){0,3}x(a|bc){1,2}y(a|bc){2,}z(a|cb){0,3}");
  ASSERT_NE(several, nullptr);
  EXPECT_TRUE(Matches(*several, "aaaxbcayaaaaaaazcbcba"));
  EXPECT_FALSE(Matches(*several, "aaaaxayaaz"));
  EXPECT_FALSE(Matches(*several, "xyaaz"));
  EXPECT_FALSE(Matches(*several, "xaaayaaz"));
  EXPECT_FALSE(Matches(*several, "xayaz"));
  EXPECT_FALSE(Matches(*several, "xayaazbc"));
}

TEST_F(Grammars, FurtherPropertiesAreThereUnlessTheSchemaIsClosed) {
  using Json = nlohmann::ordered_json;
  const Json schema =
      Json::parse(R"({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]})");
  const auto compile = [this](const Json& given) {
    return Compile(SourceOf(GrammarKind::kJsonSchema, std::get<Json>(GateSchema(given, {})).dump()));
  };
  const auto open = compile(schema), closed = compile(WithNamedMembersOnly(schema));
  EXPECT_TRUE(Matches(*open, R"({"a": 1})"));
  EXPECT_TRUE(Matches(*open, R"({"a": 1, "b": 2})"));
  EXPECT_TRUE(Matches(*closed, R"({"a": 1})"));
  EXPECT_FALSE(Matches(*closed, R"({"a": 1, "b": 2})"));
}

TEST_F(Grammars, LongNamesAndLongPatternsAreExact) {
  const auto compile = [this](const std::string& schema) {
    const SchemaOrRefusal gated = GateSchemaText(schema, {});
    return Compile(SourceOf(GrammarKind::kJsonSchema, std::get<nlohmann::ordered_json>(gated).dump()));
  };
  std::string name;
  for (int i = 0; i < 200; ++i) name += static_cast<char>('a' + i % 26);
  const auto object = compile(absl::StrCat(
      R"({"properties":{")", name, R"(":{"type":"integer"}},"additionalProperties":{"type":"null"}})"));
  const auto has = [&](const std::string& member, const char* value) {
    return Matches(*object, absl::StrCat("{\"", member, "\": ", value, "}"));
  };
  EXPECT_TRUE(has(name, "1"));
  EXPECT_FALSE(has(name, "null"));
  EXPECT_TRUE(has(name + "a", "null"));
  for (const size_t length : {1, 31, 32, 33, 99, 100, 101, 150, 199}) {
    EXPECT_TRUE(has(name.substr(0, length), "null")) << length;
    EXPECT_TRUE(has(absl::StrCat(name.substr(0, length), "-", name.substr(length)), "null")) << length;
    EXPECT_FALSE(has(name.substr(0, length), "1")) << length;
  }
  const auto text = compile(R"({"type":"string","pattern":"^[a-z]+-[a-z]+$","maxLength":100})");
  for (const size_t dash : {1, 2, 50, 98}) {
    const std::string begin = absl::StrCat("\"", std::string(dash, 'a'), "-");
    EXPECT_TRUE(Matches(*text, absl::StrCat(begin, std::string(99 - dash, 'b'), "\""))) << dash;
    EXPECT_FALSE(Matches(*text, absl::StrCat(begin, std::string(100 - dash, 'b'), "\""))) << dash;
    EXPECT_FALSE(Matches(*text, absl::StrCat(begin, "\""))) << dash;
  }
}

TEST_F(Grammars, AJsonObjectIsAnObject) {
  const auto grammar = Compile(GrammarKind::kJsonObject, "");
  EXPECT_TRUE(Matches(*grammar, R"({"a": [1, {"b": null}]})"));
  EXPECT_TRUE(Matches(*grammar, "{}"));
  EXPECT_FALSE(Matches(*grammar, "[]"));
  EXPECT_FALSE(Matches(*grammar, "1"));
}

TEST_F(Grammars, ChoicesMayHoldAnyCharacter) {
  GrammarSource source{.kind = GrammarKind::kChoice};
  source.choices = {
      "yes",     "\"quoted\" \\ back", "line\nbreak", "[a-z] | (x)", "\u00e9\U0001F600", "yes sir", "",
      "\x01\x7f"};
  const auto grammar = Compile(source);
  ASSERT_NE(grammar, nullptr);
  for (const std::string& choice : source.choices) EXPECT_TRUE(Matches(*grammar, choice)) << choice;
  EXPECT_FALSE(Matches(*grammar, "ye"));
  EXPECT_FALSE(Matches(*grammar, "x"));
}

TEST_F(Grammars, EndTokensComeWhereTheTextIsCompleteAndEndTheMatcher) {
  auto matcher = *Compile(GrammarKind::kRegex, "ab?")->NewMatcher();
  EXPECT_EQ(Allowed(matcher.get()), (std::set<int32_t>{'a', kSmallAb}));
  EXPECT_EQ(matcher->Accept(kSmallEnd).code(), absl::StatusCode::kInvalidArgument);
  ASSERT_TRUE(matcher->Accept('a').ok());
  EXPECT_TRUE(matcher->IsComplete());
  EXPECT_EQ(Allowed(matcher.get()), (std::set<int32_t>{'b', kSmallEnd, kSmallOtherEnd}));
  ASSERT_TRUE(matcher->Accept(kSmallOtherEnd).ok());
  EXPECT_TRUE(matcher->IsTerminated());
  std::vector<uint32_t> mask(static_cast<size_t>(MaskWords(vocabulary_.rows)));
  EXPECT_EQ(matcher->FillMask(absl::MakeSpan(mask)).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(matcher->Accept('b').code(), absl::StatusCode::kInvalidArgument);
  ASSERT_TRUE(matcher->Rollback(1).ok());
  EXPECT_FALSE(matcher->IsTerminated());
  EXPECT_EQ(Allowed(matcher.get()), (std::set<int32_t>{'b', kSmallEnd, kSmallOtherEnd}));
}

TEST_F(Grammars, ARefusedTokenChangesNothing) {
  auto matcher = *Compile(GrammarKind::kRegex, "abc[0-9]")->NewMatcher();
  ASSERT_TRUE(AcceptBytes(matcher.get(), "ab").ok());
  for (const int32_t token : {int32_t{'x'}, kSmallSpecial, kSmallEnd, -1, 1000, 330}) {
    EXPECT_EQ(matcher->Accept(token).code(), absl::StatusCode::kInvalidArgument) << token;
  }
  EXPECT_EQ(Allowed(matcher.get()), (std::set<int32_t>{'c'}));
  EXPECT_EQ(matcher->Rollback(3).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(matcher->Rollback(2).ok());
  EXPECT_TRUE(AcceptBytes(matcher.get(), "abc7").ok());
}

TEST_F(Grammars, AForkGoesOnByItself) {
  auto matcher = *Compile(GrammarKind::kRegex, "a(b|c)d")->NewMatcher();
  ASSERT_TRUE(matcher->Accept('a').ok());
  auto fork = *matcher->Fork();
  ASSERT_TRUE(AcceptBytes(matcher.get(), "bd").ok());
  ASSERT_TRUE(fork->Accept('c').ok());
  EXPECT_EQ(Allowed(fork.get()), (std::set<int32_t>{'d'}));
  ASSERT_TRUE(fork->Rollback(2).ok());
  EXPECT_EQ(Allowed(fork.get()).count('a'), 1u);
  EXPECT_TRUE(matcher->IsComplete());
}

TEST_F(Grammars, ForcedTextEndsWhereThereIsAChoiceOrAnEnd) {
  const auto grammar = Compile(GrammarKind::kEbnf, "root ::= \"{order\" (\"Id\" | \"Key\") \"}\"");
  auto matcher = *grammar->NewMatcher();
  EXPECT_EQ(*matcher->ForcedText(100, absl::InfiniteDuration()), "{order");
  EXPECT_EQ(*matcher->ForcedText(3, absl::InfiniteDuration()), "{or");
  ASSERT_TRUE(AcceptBytes(matcher.get(), "{orderI").ok());
  EXPECT_EQ(*matcher->ForcedText(100, absl::InfiniteDuration()), "d}");
  ASSERT_TRUE(AcceptBytes(matcher.get(), "d}").ok());
  EXPECT_EQ(*matcher->ForcedText(100, absl::InfiniteDuration()), "");
  ASSERT_TRUE(matcher->Rollback(9).ok());
  EXPECT_EQ(*matcher->ForcedText(100, absl::InfiniteDuration()), "{order");
}

TEST_F(Grammars, AForcedTextWithoutAnEndIsBounded) {
  auto matcher = *Compile(GrammarKind::kEbnf, "root ::= \"z\" root")->NewMatcher();
  EXPECT_EQ(*matcher->ForcedText(1000, absl::InfiniteDuration()), std::string(1000, 'z'));
}

TEST_F(Grammars, WrongSourcesAreInvalid) {
  const std::pair<GrammarKind, const char*> sources[] = {
      {GrammarKind::kJsonSchema, "{"},
      {GrammarKind::kJsonSchema, "[]"},
      {GrammarKind::kJsonSchema, R"({"type": "nothing"})"},
      {GrammarKind::kJsonSchema, R"({"type": "integer", "minimum": 3, "maximum": 1})"},
      {GrammarKind::kJsonSchema, R"({"$ref": "#/$defs/missing"})"},
      {GrammarKind::kRegex, "(a"},
      {GrammarKind::kRegex, "[b-a]"},
      {GrammarKind::kEbnf, "root ::= missing"},
      {GrammarKind::kEbnf, "other ::= \"a\""},
      {GrammarKind::kStructuralTag, R"({"type": "structural_tag", "format": {"type": "unknown"}})"},
  };
  for (const auto& [kind, text] : sources) {
    EXPECT_EQ(ErrorOf(kind, text).code(), absl::StatusCode::kInvalidArgument) << text;
  }
  EXPECT_EQ(ErrorOf(GrammarKind::kRegex, std::string("a\0b", 3)).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(compiler_->Compile({.kind = GrammarKind::kChoice}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(Grammars, WhatTheEngineWouldIgnoreIsRefused) {
  const std::pair<GrammarKind, const char*> sources[] = {
      {GrammarKind::kJsonSchema, R"({"type": "number", "multipleOf": 0.1})"},
      {GrammarKind::kJsonSchema, R"({"$ref": "https://example.com/schema"})"},
      {GrammarKind::kRegex, "a$b"},
  };
  for (const auto& [kind, text] : sources) {
    const absl::Status status = ErrorOf(kind, text);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(status.message()), HasSubstr("cannot be enforced")) << text;
  }
}

TEST_F(Grammars, LimitsOfTheSource) {
  const auto compiler = SmallCompiler({.source_bytes = 100, .depth = 5});
  const auto code = [&](GrammarKind kind, const std::string& text) {
    return compiler->Compile(SourceOf(kind, text)).status().code();
  };
  EXPECT_EQ(code(GrammarKind::kRegex, std::string(100, 'a')), absl::StatusCode::kOk);
  EXPECT_EQ(code(GrammarKind::kRegex, std::string(101, 'a')), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(GrammarKind::kRegex, "(((((a)))))"), absl::StatusCode::kOk);
  EXPECT_EQ(code(GrammarKind::kRegex, "((((((a))))))"), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(GrammarKind::kRegex, "\\(\\(\\(\\(\\(\\(\\("), absl::StatusCode::kOk);
  EXPECT_EQ(code(GrammarKind::kJsonSchema, R"x({"pattern": "(((((a)))))"})x"),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(GrammarKind::kJsonSchema, R"x({"type": "string", "pattern": "(a)(a)(a)(a)(a)(a)"})x"),
            absl::StatusCode::kOk);
}

TEST_F(Grammars, ASchemaThatTheGateServesIsAsDeepAsTheEngineTakes) {
  std::string list = "1";
  for (int i = 0; i < 62; ++i) list = absl::StrCat("[", list, "]");
  const SchemaOrRefusal gated = GateSchemaText(absl::StrCat(R"({"const":)", list, "}"), {});
  const std::string written = std::get<nlohmann::ordered_json>(gated).dump();
  const int64_t depth = BracketDepth(written, /*json=*/true);
  EXPECT_GT(depth, 120);
  EXPECT_LE(depth, GrammarLimits().depth);
  const auto grammar = Compile(GrammarKind::kJsonSchema, written);
  ASSERT_NE(grammar, nullptr);
  EXPECT_TRUE(Matches(*grammar, list));
}

TEST_F(Grammars, AVocabularyThatDoesNotFitIsRefused) {
  const auto code = [](GrammarVocabulary vocabulary) {
    return NewXgrammarCompiler(vocabulary, {}).status().code();
  };
  GrammarVocabulary vocabulary = SmallVocabulary();
  vocabulary.end_tokens = {};
  EXPECT_EQ(code(vocabulary), absl::StatusCode::kInvalidArgument);
  vocabulary.end_tokens = {1000};
  EXPECT_EQ(code(vocabulary), absl::StatusCode::kInvalidArgument);
  vocabulary = SmallVocabulary();
  vocabulary.rows = 10;
  EXPECT_EQ(code(vocabulary), absl::StatusCode::kInvalidArgument);
}

TEST_F(Grammars, AMaskOfTheWrongSizeIsRefused) {
  auto matcher = *Compile(GrammarKind::kRegex, "a")->NewMatcher();
  std::vector<uint32_t> mask(3);
  EXPECT_EQ(matcher->FillMask(absl::MakeSpan(mask)).code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(Grammars, TheEndOfTheVocabularyIsAnErrorNotAnEmptyMask) {
  GrammarVocabulary vocabulary{.token_bytes = {"a", "b", ""}, .end_tokens = {2}, .rows = 3};
  auto compiler = *NewXgrammarCompiler(vocabulary, {});
  auto matcher = *(*compiler->Compile(SourceOf(GrammarKind::kRegex, "ac")))->NewMatcher();
  ASSERT_TRUE(matcher->Accept(0).ok());
  uint32_t mask = 0;
  EXPECT_EQ(matcher->FillMask({&mask, 1}).code(), absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace somnus
