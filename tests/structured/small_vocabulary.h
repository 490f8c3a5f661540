#pragma once
// A vocabulary small enough to try every token: all bytes, some longer tokens, a special token and two tokens
// that end a text.

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/structured/grammar.h"
#include "coordinator/structured/grammar_vocabulary.h"
#include "coordinator/structured/xgrammar_compiler.h"

namespace somnus {

inline constexpr int32_t kSmallSpecial = 256;
inline constexpr int32_t kSmallEnd = 257;
inline constexpr int32_t kSmallOtherEnd = 258;
inline constexpr int32_t kSmallAb = 281;  // the token "ab"

// Token b of the first 256 is byte b. The rows of the logits go on after the last token.
GrammarVocabulary SmallVocabulary();
std::unique_ptr<GrammarCompiler> SmallCompiler(const GrammarLimits& limits = {});

GrammarSource SourceOf(GrammarKind kind, std::string text);
// Accepts `text` byte by byte.
absl::Status AcceptBytes(GrammarMatcher* matcher, std::string_view text);
// Whether the whole of `text` is a text of the grammar.
bool Matches(const CompiledGrammar& grammar, std::string_view text);

}  // namespace somnus
