// Masks, and how a matcher goes forward and back, for all kinds of grammars. The oracle of a mask is the byte
// by byte walk: a token may come where all of its bytes may come one after the other.

#include "coordinator/structured/grammar.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <utility>
#include <variant>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "coordinator/structured/schema_brackets.h"
#include "coordinator/structured/schema_gate.h"
#include "coordinator/structured/schema_named_members.h"
#include "coordinator/structured/xgrammar_compiler.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/limits.h"
#include "tests/structured/small_vocabulary.h"

namespace somnus {
namespace {

using ::testing::HasSubstr;

// Grammars of all kinds, whose masks are compared with the walk over bytes.
constexpr std::pair<GrammarKind, const char*> kWalkedSources[] = {
    {GrammarKind::kJsonObject, ""},
    {GrammarKind::kJsonSchema,
     R"({"type": "object", "properties": {"a": {"type": "integer"}, "ab": {"type": "string"}},
                                     "required": ["a"], "additionalProperties": false})"},
    {GrammarKind::kJsonSchema,
     R"({"type": "array", "items": {"enum": ["abc", "ab", 12, null, true]}, "maxItems": 3})"},
    {GrammarKind::kJsonSchema, R"({"anyOf": [{"type": "string", "maxLength": 3}, {"type": "number"}]})"},
    {GrammarKind::kJsonSchema,
     R"({"$ref": "#/$defs/t", "$defs": {"t": {"type": "array", "items": {"$ref": "#/$defs/t"}}}})"},
    {GrammarKind::kJsonSchema, R"({"type": "string", "pattern": "^(ab|ba)+$"})"},
    {GrammarKind::kRegex, "(ab)*c?[0-9]{2,4}"},
    {GrammarKind::kRegex, "x(a|b.*)"},
    {GrammarKind::kRegex, "[^a-z]+"},
    {GrammarKind::kRegex, "x(a|bc){2,5}[ab]{0,130}"},
    {GrammarKind::kRegex, "([^b-d]|bc|d){1,9}"},
    {GrammarKind::kRegex, "x(a|bc|[^a-z]){0,300}y"},
    {GrammarKind::kRegex, "x(a|bc){100,300}y"},
    {GrammarKind::kRegex, "(a|bc){3}(a|bc){2,}"},
    {GrammarKind::kRegex, "(a*|b){1,4}c"},
    // One automaton in several places: what may follow it differs, and may be its own beginning.
    {GrammarKind::kRegex, "((a|bc){2,40}yes|x(a|bc){1,70}(12|no)?|3(a|bc){2,40}abab)"},
    {GrammarKind::kRegex, "(a|bc){1,3}|x((a|bc){1,3}[^a]){1,2}"},
    // The part behind the first one has a class that ends beyond ASCII.
    {GrammarKind::kJsonSchema, R"({"type": "string", "pattern": "^[abx]?[\\uE000-\\uFFFF]*c(?:é){0}$"})"},
    {GrammarKind::kEbnf, "root ::= first [\\uE000-\\U0010FFFF]* \"yes\"\nfirst ::= \"\" | [a-z]"},
    {GrammarKind::kEbnf, "root ::= first [^\\u4E61-\\u4E63] \"x\"\nfirst ::= \"\" | [abx]"},
    {GrammarKind::kEbnf,
     "root ::= item{1,3} \"x\" root | \"\\\"\" item{0,90} \"\\\"\" tail\n"
     "item ::= [a-c] | \"\\\\\" [n\\\"]\ntail ::= \"\" | \", \" root | \"}\" item{2}"},
    {GrammarKind::kJsonSchema, R"({"type": "string", "pattern": "^(?:[ab]|\\\\[nt]){2,9}$"})"},
    {GrammarKind::kEbnf,
     "root ::= expression\nexpression ::= [0-9]+ | \"-\" expression | \"[\" expression \"]\""},
    {GrammarKind::kEbnf, "root ::= \"a\" root \"b\" | \"\""},
    {GrammarKind::kStructuralTag,
     R"({"type": "structural_tag", "format": {"type": "tag", "begin": "ab", "content":
          {"type": "json_schema", "json_schema": {"type": "boolean"}}, "end": "ba"}})"},
    {GrammarKind::kStructuralTag,
     R"({"type": "structural_tag", "format": {"type": "tag", "begin": "ab", "content":
          {"type": "json_schema", "json_schema": {"type": "string", "pattern": "^(?:[ab]|\\\\[nt]){1,9}$"}}, "end": "ba"}})"},
    {GrammarKind::kJsonSchema,
     R"({"type": "array", "items": {"anyOf": [{"type": "string", "pattern": "^(?:[ab]|\\\\[nt]){2,80}$"},
          {"type": "object", "properties": {"a": {"type": "string", "pattern": "^(?:[ab]|\\\\[nt]){0,9}$"}},
           "required": ["a"], "additionalProperties": false}]}})"},
};

class Grammars : public ::testing::Test {
 protected:
  std::shared_ptr<const CompiledGrammar> Compile(const GrammarSource& source) {
    auto grammar = compiler_->Compile(source);
    EXPECT_TRUE(grammar.ok()) << grammar.status() << " " << source.text;
    return grammar.ok() ? *grammar : nullptr;
  }
  std::shared_ptr<const CompiledGrammar> Compile(GrammarKind kind, const std::string& text) {
    return Compile(SourceOf(kind, text));
  }
  absl::Status ErrorOf(GrammarKind kind, const std::string& text) {
    return compiler_->Compile(SourceOf(kind, text)).status();
  }

  std::set<int32_t> Allowed(GrammarMatcher* matcher) {
    std::vector<uint32_t> mask(static_cast<size_t>(MaskWords(vocabulary_.rows)));
    const absl::Status status = matcher->FillMask(absl::MakeSpan(mask));
    EXPECT_TRUE(status.ok()) << status;
    std::set<int32_t> allowed;
    for (int32_t token = 0; token < static_cast<int32_t>(mask.size() * 32); ++token) {
      if ((mask[static_cast<size_t>(token) / 32] >> (token % 32) & 1) != 0) allowed.insert(token);
    }
    return allowed;
  }

  std::set<int32_t> AllowedByBytes(const GrammarMatcher& matcher) {
    std::set<int32_t> allowed;
    for (int32_t token = 0; token < static_cast<int32_t>(vocabulary_.token_bytes.size()); ++token) {
      if (token == kSmallEnd || token == kSmallOtherEnd) {
        if (matcher.IsComplete()) allowed.insert(token);
        continue;
      }
      const std::string& bytes = vocabulary_.token_bytes[static_cast<size_t>(token)];
      if (!bytes.empty() && AcceptBytes(matcher.Fork()->get(), bytes).ok()) allowed.insert(token);
    }
    return allowed;
  }

  // The tokens that are in one set alone.
  std::string Difference(const std::set<int32_t>& mask, const std::set<int32_t>& walk) {
    std::string difference;
    for (int32_t token = 0; token < vocabulary_.rows; ++token) {
      if (mask.contains(token) == walk.contains(token)) continue;
      absl::StrAppend(&difference, mask.contains(token) ? " only the mask has " : " the mask lacks ", token,
                      " '", absl::CEscape(vocabulary_.token_bytes[static_cast<size_t>(token)]), "'");
    }
    return difference;
  }

  // Walks through the grammar at random, and compares each mask and the state after going back.
  void Walk(const CompiledGrammar& grammar, uint32_t seed) {
    std::mt19937 random(seed);
    auto matcher = grammar.NewMatcher();
    ASSERT_TRUE(matcher.ok());
    std::string text;
    for (int step = 0; step < 40; ++step) {
      const std::set<int32_t> allowed = Allowed(matcher->get());
      ASSERT_EQ(Difference(allowed, AllowedByBytes(**matcher)), "") << "after '" << text << "'";
      auto next = allowed.begin();
      std::advance(next, random() % allowed.size());
      ASSERT_EQ((*matcher)->Accept(*next), absl::OkStatus()) << text;
      if ((*matcher)->IsTerminated()) return;
      text += vocabulary_.token_bytes[static_cast<size_t>(*next)];
      if (random() % 4 != 0) continue;
      ASSERT_TRUE((*matcher)->Rollback(1).ok());
      ASSERT_EQ(Allowed(matcher->get()), allowed) << "back at '" << text << "'";
      ASSERT_EQ((*matcher)->Accept(*next), absl::OkStatus()) << text;
    }
  }

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

  explicit Grammars(GrammarVocabulary vocabulary = SmallVocabulary())
      : vocabulary_(std::move(vocabulary)), compiler_(*NewXgrammarCompiler(vocabulary_, {})) {}

  const GrammarVocabulary vocabulary_;
  const std::unique_ptr<GrammarCompiler> compiler_;
};

// With tokens that go beyond an automaton of counted repetitions, as a vocabulary's rows of spaces do.
class GrammarsOfLongTokens : public Grammars {
 protected:
  GrammarsOfLongTokens() : Grammars(Vocabulary()) {}

  static GrammarVocabulary Vocabulary() {
    GrammarVocabulary vocabulary = SmallVocabulary();
    for (const int length : {31, 33, 64, 66, 100}) {
      const std::string row(static_cast<size_t>(length), 'a');
      vocabulary.token_bytes.push_back(row);
      vocabulary.token_bytes.push_back(row + "y");
    }
    vocabulary.token_bytes.push_back(std::string(40, 'a') + "bcab");
    return vocabulary;
  }
};

TEST_F(Grammars, MasksAreThoseOfTheWalkOverBytes) {
  for (const auto& [kind, text] : kWalkedSources) {
    SCOPED_TRACE(text);
    const auto grammar = Compile(kind, text);
    ASSERT_NE(grammar, nullptr);
    for (uint32_t seed = 0; seed < 3; ++seed) Walk(*grammar, seed);
    grammar->MakeMasks();
    const int64_t bytes = grammar->bytes();
    for (uint32_t seed = 0; seed < 3; ++seed) Walk(*grammar, seed);
    EXPECT_EQ(grammar->bytes(), bytes) << "a mask was missing";
  }
}

TEST_F(GrammarsOfLongTokens, MasksAreThoseOfTheWalkOverBytes) {
  for (const char* pattern : {"x(a|bc){0,300}y", "x(a|bc){100,300}y", "x(a|bc){0,131}y", "x(a|bc){150,}y",
                              "x(a|bc|[^a-z]){0,200}a{40,60}y", "x((a|bc){70,133}|(a|yb){0,400})y"}) {
    SCOPED_TRACE(pattern);
    const auto grammar = Compile(GrammarKind::kRegex, pattern);
    ASSERT_NE(grammar, nullptr);
    for (uint32_t seed = 0; seed < 6; ++seed) Walk(*grammar, seed);
  }
}

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

TEST_F(Grammars, WithAnyWhitespaceAndWithout) {
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
TEST_F(Grammars, MasksWithBoundedWhitespaceAreThoseOfAGrammarThatCounts) {
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

TEST_F(Grammars, BoundedWhitespaceIsCountedOutsideOfStringsAlone) {
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

TEST_F(Grammars, BoundedWhitespaceIsKnownAfterTheMostTokensAreTakenBack) {
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

TEST_F(Grammars, WhitespaceIsBoundedInTheSchemasOfAStructuralTag) {
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
