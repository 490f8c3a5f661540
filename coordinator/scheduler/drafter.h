#pragma once
// Guesses how a sequence goes on, so that a step can check several tokens at once (speculative decoding). A
// wrong guess costs time and changes nothing. Engine loop thread only.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/types/span.h"

namespace somnus {

class Drafter {
 public:
  virtual ~Drafter() = default;
  // Sets `draft` to at most `most` tokens that may follow `tokens`, in order; empty: there is no guess.
  // `tokens` begin with the tokens of the call before.
  virtual void Propose(absl::Span<const int32_t> tokens, int32_t most, std::vector<int32_t>* draft) = 0;
  // The workers' draft model expects `proposals` behind the sequence's first `num_tokens` tokens, which are
  // all known tokens.
  virtual void TakeProposals(size_t /*num_tokens*/, absl::Span<const int32_t> /*proposals*/) {}
};

// Makes the drafter of a sequence.
using MakeDrafter = std::function<std::unique_ptr<Drafter>()>;

}  // namespace somnus
