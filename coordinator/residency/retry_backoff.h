#pragma once
// When something that has failed is tried again, such as a replica or a sleep: after a pause that doubles
// with every failure, up to a bound. Once a replica has served for as long as the bound, pauses begin with
// the first pause again. All times are of a monotonic clock. A value; not thread safe.

#include "absl/time/time.h"
#include "base/monotonic.h"

namespace somnus {

class RetryBackoff {
 public:
  RetryBackoff() : RetryBackoff(absl::InfiniteDuration(), absl::InfiniteDuration()) {}
  // An infinite `first_pause`: never.
  RetryBackoff(absl::Duration first_pause, absl::Duration longest_pause)
      : first_pause_(first_pause), longest_pause_(longest_pause), pause_(first_pause) {}

  // The attempt has failed. Returns the pause until the next try; infinite: there is none.
  absl::Duration NoteFailed(MonotonicTime now);
  void NoteServing(MonotonicTime now) { serving_since_ = now; }
  // The next pause is as long as the first pause.
  void Restart() { pause_ = first_pause_; }
  // A next attempt begins.
  void NoteTry() { due_ = absl::InfiniteDuration(); }
  // The time of the next attempt; infinite where no attempt has failed since the last NoteTry.
  MonotonicTime due() const { return due_; }

 private:
  absl::Duration first_pause_, longest_pause_;
  absl::Duration pause_;  // the next pause
  MonotonicTime due_ = absl::InfiniteDuration();
  MonotonicTime serving_since_ = absl::InfiniteDuration();
};

}  // namespace somnus
