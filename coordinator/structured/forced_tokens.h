#pragma once
// A text that a grammar forces, as tokens that the model would have written itself.

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/base/call_once.h"
#include "text/tokenizer/tokenizer.h"

namespace somnus {

// After {" the text `order` may be forced, because all keys begin with it, and yet the token `order` must not
// be: the model may want to write orderId, which is one token. So the last tokens of the text wait for what
// follows. Thread safe.
class ForcedTokenizer {
 public:
  explicit ForcedTokenizer(std::shared_ptr<const Tokenizer> tokenizer) : tokenizer_(std::move(tokenizer)) {}

  // Sorts the vocabulary, which takes tens of milliseconds, unless that is done. The first Tokens does the
  // same: a caller that must not wait calls Prepare on another thread before.
  void Prepare() const;

  // The tokens with which the tokenization of every text begins that begins with `text`; often none. Exact
  // for BPE without pre-tokenization: before any continuation a token ends at the text's end or at a place
  // from which some token reaches beyond the text, and up to that place the tokens are those of the text up
  // to there. Pre-tokenizers that look further ahead may differ, so the tokens are fit for drafts. Empty
  // where the tokenizer changes the text's start.
  std::vector<int32_t> Tokens(std::string_view text) const;

 private:
  // Whether a token is longer than `start` and begins with it.
  bool BeginsToken(std::string_view start) const;
  // The tokens of `text` as far as their bytes are those of `text`.
  std::vector<int32_t> Encode(std::string_view text) const;

  const std::shared_ptr<const Tokenizer> tokenizer_;
  mutable absl::once_flag once_;
  mutable std::vector<std::string_view> sorted_;  // by Prepare: the bytes of all tokens that are not special
};

}  // namespace somnus
