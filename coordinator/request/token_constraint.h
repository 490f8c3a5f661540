#pragma once
// The form that a request's outputs must have, as far as tokens can tell: a grammar, for example. The
// scheduler sees these two interfaces, and coordinator/structured implements them.
//
// A TokenConstraint belongs to a request and is shared by the request's sequences; a TokenMatcher belongs to
// one sequence and knows how far that sequence has come. A matcher's state depends on the accepted tokens
// alone, so that a request that moves to another engine, or begins again after a failure, goes on exactly.

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"

namespace somnus {

// For one thread at a time.
class TokenMatcher {
 public:
  virtual ~TokenMatcher() = default;

  // The sequence's next output is `token`. InvalidArgument: the constraint does not allow that token here;
  // nothing has changed.
  virtual absl::Status Accept(int32_t token) = 0;
  // Takes the last `count` accepted tokens back, at most kMaxSpeculativeTokens (proto/limits.h).
  virtual void Rollback(int32_t count) = 0;
  // Sets the bits of the tokens that may come next, and clears all further bits: bit id % 32 of word id / 32
  // stands for id. False: every token may come next, and `mask`, of TokenConstraint::num_mask_words words, is
  // undefined.
  virtual bool FillMask(absl::Span<uint32_t> mask) = 0;
  // Sets `tokens` to at most `most` tokens that will probably come next, as the constraint leaves no choice
  // of text; often none. A draft: the constraint may allow the same text in further tokens.
  virtual void ForcedTokens(int32_t most, std::vector<int32_t>* tokens) = 0;
  // The text is complete, and a token that ends a sequence was accepted: nothing may follow.
  virtual bool IsTerminated() const = 0;
  // Why the last mask allows no token, where the constraint itself has failed; else OK.
  virtual absl::Status error() const = 0;
};

// Immutable; thread safe.
class TokenConstraint {
 public:
  virtual ~TokenConstraint() = default;

  // A matcher at the beginning of the outputs. The constraint must outlive the matcher.
  virtual std::unique_ptr<TokenMatcher> NewMatcher() const = 0;
  // (vocab_size + 31) / 32, with the number of the model's logits as vocab_size.
  virtual int32_t num_mask_words() const = 0;
  // The memory that one sequence takes: its matcher and two masks. The memory that all sequences share is
  // bounded where the constraint comes from (structured/grammar_cache.h).
  virtual int64_t bytes() const = 0;
};

}  // namespace somnus
