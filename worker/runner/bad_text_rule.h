#pragma once
// A text that a sequence's outputs never complete, whichever tokens spell it (BadText in proto/step.proto).
//
// The text is an automaton whose states are its prefixes, by their lengths: a token leads from one to a
// longer one, and what would lead to the whole text is forbidden. Several prefixes may end at the same token,
// so the rule follows all of them; the empty one is always among them. Immutable; thread safe.

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

  // Whether what is forbidden depends on the outputs.
  bool looks_at_tokens() const { return !inner_.empty() || always_ < endings_.size(); }

 private:
  struct Piece {
    int32_t key, other, to;  // inner_: token, from, to; endings_: from, token
  };
  // Returns of each prefix whether the outputs end with it; empty: with none but the empty one.
  std::vector<bool> PrefixesAtEnd(absl::Span<const int32_t> outputs) const;
  bool IsInside(int32_t token) const;

  int32_t num_bytes_ = 0;
  std::vector<Piece> inner_;    // that do not complete the text, by token
  std::vector<Piece> endings_;  // that do, by the prefix that they follow
  size_t always_ = 0;           // how many of endings_ follow the empty prefix
};

}  // namespace somnus
