#pragma once
// Which new sequences ask the workers' draft model for guesses from their start on, by the success of earlier
// sequences. A guess makes the draft model compute all tokens that were generated before, so each sequence
// that finds out for itself that guesses are wrong pays for most of its tokens. After several such sequences
// in a row, few of the following sequences ask.

#include <algorithm>
#include <cstdint>

namespace somnus {

class DraftTrials {
 public:
  static constexpr int32_t kFailures = 4;    // in a row, after which few sequences ask
  static constexpr int32_t kOneOf = 16;      // of the following sequences a single one asks
  static constexpr int32_t kLater = 256;     // tokens after which the other sequences ask, too
  static constexpr int32_t kWrongPause = 8;  // a DraftLength::pause() that only wrong guesses bring about

  // How many tokens the next new sequence goes by before its first guess.
  int32_t FirstPause() {
    if (num_failures_ < kFailures) return 0;
    num_left_out_ = (num_left_out_ + 1) % kOneOf;
    return num_left_out_ == 0 ? 0 : kLater;
  }
  // A sequence's guesses were wrong, or a draft was right as a whole.
  void NoteFailure() { num_failures_ = std::min(kFailures, num_failures_ + 1); }
  void NoteSuccess() { num_failures_ = num_left_out_ = 0; }

 private:
  int32_t num_failures_ = 0;  // in a row
  int32_t num_left_out_ = 0;
};

}  // namespace somnus
