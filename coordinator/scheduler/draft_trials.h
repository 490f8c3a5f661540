#pragma once
// Which new sequences ask the workers' draft model for guesses, by how those before them fared. The first
// guess makes it compute the whole prompt, which in short answers costs more than all other guesses. Where
// several sequences in a row found that it guesses wrong, only some of those that follow ask it.

#include <algorithm>
#include <cstdint>

namespace somnus {

class DraftTrials {
 public:
  static constexpr int32_t kFailures = 4;    // in a row, after which few sequences ask
  static constexpr int32_t kOneOf = 16;      // of those that follow asks
  static constexpr int32_t kLater = 1024;    // tokens after which each of the others asks, too
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
