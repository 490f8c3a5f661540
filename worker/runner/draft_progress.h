#pragma once
// Which tokens of each slot's sequence have keys and values in the draft model's cache: the first tokens,
// then guesses, that count where the sequence has gone on with the same tokens. draft_blocks.h knows which
// tokens the blocks have when a sequence begins. Used by the runner thread alone.

#include <algorithm>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace somnus {

class DraftProgress {
 public:
  explicit DraftProgress(int32_t num_slots) : slots_(static_cast<size_t>(std::max(0, num_slots))) {}

  // Whether the slot has a new sequence; `generation` is the sequence's (Slot). Begin is to be called then,
  // with the number of tokens that the sequence's blocks have.
  bool IsNew(int32_t slot, int64_t generation) const {
    return slots_[static_cast<size_t>(slot)].generation != generation;
  }
  void Begin(int32_t slot, int64_t generation, int32_t num_tokens) {
    slots_[static_cast<size_t>(slot)] = {generation, num_tokens, num_tokens, {}};
  }
  // Tokens from `end` on have a new block now.
  void CutAt(int32_t slot, int32_t end) {
    Progress& own = slots_[static_cast<size_t>(slot)];
    const int32_t num_guesses = std::max(0, end - own.computed);
    if (own.guesses.size() > static_cast<size_t>(num_guesses)) own.guesses.resize(num_guesses);
    own.computed = std::min(own.computed, end);
    own.noted = std::min(own.noted, end);
  }
  // How many tokens the last Begin or Set was about: guesses have been right since.
  int32_t noted(int32_t slot) const { return slots_[static_cast<size_t>(slot)].noted; }
  // Returns how many of the sequence's first `end` tokens are there. `tokens`: all tokens of the sequence, of
  // which some may be unknown (negative).
  int32_t Reached(int32_t slot, absl::Span<const int32_t> tokens, int32_t end) {
    Progress& own = slots_[static_cast<size_t>(slot)];
    size_t right = 0;
    while (own.computed < end && right < own.guesses.size() &&
           tokens[static_cast<size_t>(own.computed)] == own.guesses[right]) {
      ++own.computed;
      ++right;
    }
    if (own.computed < end && right < own.guesses.size() && tokens[static_cast<size_t>(own.computed)] >= 0) {
      own.guesses.clear();  // the sequence has gone on otherwise
    } else {
      own.guesses.erase(own.guesses.begin(), own.guesses.begin() + static_cast<std::ptrdiff_t>(right));
    }
    return std::min(own.computed, end);
  }
  // The first `end` tokens are there now, and then the guesses.
  void Set(int32_t slot, int32_t end, absl::Span<const int32_t> guesses) {
    Progress& own = slots_[static_cast<size_t>(slot)];
    own.computed = own.noted = end;
    own.guesses.assign(guesses.begin(), guesses.end());
  }
  // Nothing is there any more.
  void Clear() { std::fill(slots_.begin(), slots_.end(), Progress()); }

 private:
  struct Progress {
    int64_t generation = -1;
    int32_t computed = 0;
    int32_t noted = 0;
    std::vector<int32_t> guesses;
  };
  std::vector<Progress> slots_;
};

}  // namespace somnus
