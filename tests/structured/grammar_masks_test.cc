// Masks of all kinds of grammars. Their oracle is the walk over bytes: a token may come where all of its
// bytes may come one after the other.

#include <gtest/gtest.h>

#include <iterator>
#include <random>
#include <set>
#include <string>
#include <utility>

#include "tests/structured/grammar_fixture.h"

namespace somnus {
namespace {

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
    // One automaton in several places: the texts behind it differ, and may be its own beginning.
    {GrammarKind::kRegex, "((a|bc){2,40}yes|x(a|bc){1,70}(12|no)?|3(a|bc){2,40}abab)"},
    {GrammarKind::kRegex, "(a|bc){1,3}|x((a|bc){1,3}[^a]){1,2}"},
    // The part behind the first part has a class that ends beyond ASCII.
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

class GrammarMasks : public Grammars {
 protected:
  explicit GrammarMasks(GrammarVocabulary vocabulary = SmallVocabulary()) : Grammars(std::move(vocabulary)) {}

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
};

// With tokens that go beyond an automaton of counted repetitions, as a vocabulary's rows of spaces do.
class GrammarsOfLongTokens : public GrammarMasks {
 protected:
  GrammarsOfLongTokens() : GrammarMasks(Vocabulary()) {}

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

TEST_F(GrammarMasks, MasksAreThoseOfTheWalkOverBytes) {
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

}  // namespace
}  // namespace somnus
