#pragma once
// A model's tokens, as grammars have to know them.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "text/tokenizer/tokenizer.h"

namespace somnus {

struct GrammarVocabulary {
  // By id: the bytes that a token adds to the text. Empty: no grammar ever allows the token, as for special
  // tokens.
  std::vector<std::string> token_bytes;
  // End a text. A grammar allows them where the text is complete, with any bytes.
  std::vector<int32_t> end_tokens;
  // Rows of the logits, at least token_bytes.size(): rows of the padding are never allowed.
  int64_t rows = 0;

  // InvalidArgument: ids or sizes do not fit each other.
  absl::Status Check() const;
};

// The vocabulary of `tokenizer`. Special tokens have no bytes; added tokens that are not special have their
// bytes.
GrammarVocabulary VocabularyOf(const Tokenizer& tokenizer, absl::Span<const int32_t> end_tokens,
                               int64_t rows);

}  // namespace somnus
