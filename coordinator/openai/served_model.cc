#include "coordinator/openai/served_model.h"

#include <algorithm>

namespace somnus {

int32_t LongestToken(const Tokenizer& tokenizer) {
  constexpr int32_t kUnbounded = 1 << 20;
  const TokenizerData& data = tokenizer.data();
  // With tokens that swallow white space around them, or splits that drop text, any length of text can be one
  // token.
  for (const AddedToken& token : data.added_tokens) {
    if (token.lstrip || token.rstrip) return kUnbounded;
  }
  for (const PreTokenizerStep& step : data.pre_tokenizer) {
    if (step.behavior == "Removed" || step.kind == PreTokenizerStep::Kind::kWhitespaceSplit)
      return kUnbounded;
  }
  size_t longest = 1;
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id)
    longest = std::max(longest, tokenizer.TokenBytes(id).size());
  return static_cast<int32_t>(longest);
}

}  // namespace somnus
