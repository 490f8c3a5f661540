#pragma once
// A text that a sequence's outputs never complete, by any sequence of tokens (BadText in proto/step.proto).
//
// The text is an automaton. The states are the prefixes of the text, by length: a token leads from a prefix
// to a longer prefix, and tokens that lead to the whole text are forbidden. Several prefixes may end at the
// same token, so the rule follows all prefixes, always including the empty prefix. Immutable; thread safe.

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "proto/step.pb.h"

namespace somnus {

class BadTextRule {
 public:
  // The ids have been checked. InvalidArgument: the message contradicts itself.
  static absl::StatusOr<BadTextRule> Create(const v1::BadText& text);

  // Calls `forbid` for every token that must not follow `outputs`, for some more than once.
  void ForEachForbidden(absl::Span<const int32_t> outputs, const std::function<void(int32_t)>& forbid) const;

  // Whether the forbidden tokens depend on the outputs.
  bool looks_at_tokens() const { return !inner_.empty() || always_ < endings_.size(); }

 private:
  struct Piece {
    int32_t key, other, to;  // inner_: token, from, to; endings_: from, token
  };
  // Returns for each prefix whether the outputs end with the prefix; empty: only with the empty prefix.
  std::vector<bool> PrefixesAtEnd(absl::Span<const int32_t> outputs) const;
  bool IsInside(int32_t token) const;

  int32_t num_bytes_ = 0;
  std::vector<Piece> inner_;    // pieces that do not complete the text, by token
  std::vector<Piece> endings_;  // pieces that complete the text, by the prefix before
  size_t always_ = 0;           // how many of endings_ follow the empty prefix
};

}  // namespace somnus
