#include "coordinator/structured/grammar_vocabulary.h"

#include <limits>

#include "absl/strings/str_cat.h"

namespace somnus {

absl::Status GrammarVocabulary::Check() const {
  const auto tokens = static_cast<int64_t>(token_bytes.size());
  if (rows < tokens || rows > std::numeric_limits<int32_t>::max()) {
    return absl::InvalidArgumentError(
        absl::StrCat("a vocabulary of ", tokens, " tokens with ", rows, " rows of logits"));
  }
  if (end_tokens.empty())
    return absl::InvalidArgumentError("a vocabulary without an end token: no text could end");
  for (const int32_t token : end_tokens) {
    if (token < 0 || token >= tokens) {
      return absl::InvalidArgumentError(absl::StrCat("end token ", token, " of ", tokens, " tokens"));
    }
  }
  return absl::OkStatus();
}

GrammarVocabulary VocabularyOf(const Tokenizer& tokenizer, absl::Span<const int32_t> end_tokens,
                               int64_t rows) {
  GrammarVocabulary vocabulary;
  vocabulary.token_bytes.resize(static_cast<size_t>(tokenizer.vocab_size()));
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    if (!tokenizer.IsSpecial(id)) vocabulary.token_bytes[static_cast<size_t>(id)] = tokenizer.TokenBytes(id);
  }
  vocabulary.end_tokens.assign(end_tokens.begin(), end_tokens.end());
  vocabulary.rows = rows;
  return vocabulary;
}

}  // namespace somnus
