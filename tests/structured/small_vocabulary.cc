#include "tests/structured/small_vocabulary.h"

#include <utility>

#include "base/check.h"
#include "base/status_macros.h"

namespace somnus {

GrammarVocabulary SmallVocabulary() {
  GrammarVocabulary vocabulary;
  for (int byte = 0; byte < 256; ++byte) vocabulary.token_bytes.emplace_back(1, static_cast<char>(byte));
  vocabulary.token_bytes.emplace_back("");       // special
  vocabulary.token_bytes.emplace_back("<end>");  // ends a text, whatever the bytes
  vocabulary.token_bytes.emplace_back("");
  for (const char* token : {
           "{\"",
           "\":",
           "\": ",
           "\": \"",
           "\",",
           "\", \"",
           "\"}",
           "\"a\"",
           "{}",
           "[]",
           "[1",
           "1]",
           ", ",
           "  ",
           "\n ",
           "\t\t",
           "true",
           "tru",
           "e}",
           "false",
           "null",
           "nul",
           "ab",
           "abc",
           "bc",
           "abab",
           "ba",
           "12",
           "123",
           "3.",
           "0.",
           "e+",
           "-1",
           "xa",
           "xbxa",
           "yes",
           "yesno",
           "no",
           "\xc3\xa9",
           "\xa9x",
           "\xe2\x82",
           "\xac\"",
           "\xf0\x9f\x98\x80",
           "\\u",
           "\\n",
           "\\\"",
           "   ",
           "  \"",
           ",\n  \"",
           "a   \"",
           "\"    ,",
       }) {
    vocabulary.token_bytes.emplace_back(token);
  }
  vocabulary.end_tokens = {kSmallEnd, kSmallOtherEnd};
  vocabulary.rows = 333;
  return vocabulary;
}

std::unique_ptr<GrammarCompiler> SmallCompiler(const GrammarLimits& limits) {
  auto compiler = NewXgrammarCompiler(SmallVocabulary(), {.limits = limits});
  SOMNUS_CHECK(compiler.ok());
  return *std::move(compiler);
}

GrammarSource SourceOf(GrammarKind kind, std::string text) {
  GrammarSource source{.kind = kind, .text = std::move(text)};
  return source;
}

absl::Status AcceptBytes(GrammarMatcher* matcher, std::string_view text) {
  for (const char byte : text) RETURN_IF_ERROR(matcher->Accept(static_cast<unsigned char>(byte)));
  return absl::OkStatus();
}

bool Matches(const CompiledGrammar& grammar, std::string_view text) {
  auto matcher = grammar.NewMatcher();
  SOMNUS_CHECK(matcher.ok());
  return AcceptBytes(matcher->get(), text).ok() && (*matcher)->IsComplete();
}

}  // namespace somnus
