#pragma once
// How many tokens a sequence's next draft has, by the results of the sequence's drafts and guesses so far.
//
// A draft that was right as a whole makes the next draft twice as long; after any other draft the next draft
// is about as long as the right part. A sequence whose drafts are wrong has no drafts any more. Guesses find
// out when drafts would pay again: the token that the drafter expects next is compared with the sampled
// token, and a few right guesses in a row begin drafts anew; the number grows each time that drafts did not
// pay. A guess that costs something is asked for the more rarely, the more guesses are wrong (pause).

#include <algorithm>
#include <cstdint>

namespace somnus {

class DraftLength {
 public:
  static constexpr int32_t kFirst = 2;  // the length at which drafts begin, and below which they end
  static constexpr int32_t kLeastGuesses = 2, kMostGuesses = 32;
  static constexpr int32_t kMostPause = 32;

  // `most`: the longest draft, at least 1.
  explicit DraftLength(int32_t most) : most_(most) {}

  // 0: no draft.
  int32_t value() const { return value_; }
  // While there are no drafts: tokens to go by without a guess, behind the last guess.
  int32_t pause() const { return pause_; }

  // A step has checked `num_draft` tokens, and the first `num_accepted` were right.
  void NoteDraft(int32_t num_draft, int32_t num_accepted) {
    if (num_accepted == num_draft) {
      value_ = std::min(most_, 2 * value_);
      guesses_needed_ = std::max(kLeastGuesses, guesses_needed_ / 2);
    } else {
      Shrink(num_accepted);
    }
  }
  // Drafts end, whether they were right or not.
  void End() {
    value_ = num_right_ = 0;
    guesses_needed_ = std::min(kMostGuesses, 2 * guesses_needed_);
    pause_ = std::min(kMostPause, std::max(pause_, guesses_needed_));
  }
  // The drafter has expected the token that was sampled without a draft, or another token.
  void NoteGuess(bool is_right) {
    if (value_ > 0) {
      if (!is_right) Shrink(0);
      return;
    }
    num_right_ = is_right ? num_right_ + 1 : 0;
    if (!is_right) {
      pause_ = std::min(kMostPause, std::max(1, 2 * pause_));
    } else if (num_right_ > 1) {
      pause_ /= 2;  // a single right guess may be chance
    }
    if (num_right_ >= guesses_needed_) value_ = First();
  }

 private:
  int32_t First() const { return std::min(kFirst, most_); }
  void Shrink(int32_t num_accepted) {
    value_ = (value_ + num_accepted) / 2;
    if (value_ < First()) End();
  }

  const int32_t most_;
  int32_t value_ = 0;
  int32_t num_right_ = 0;                   // guesses in a row, while there are no drafts
  int32_t guesses_needed_ = kLeastGuesses;  // in a row
  int32_t pause_ = 0;
};

}  // namespace somnus
