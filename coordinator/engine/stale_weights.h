#pragma once
// How long requests wait for weights that no wake-up brings: options.stale_weights_timeout, from the end of a
// change of the weights that failed, or of a recovery. Afterwards requests are refused, until the weights
// have come. While a change is under way requests wait for the change, however long other changes have failed
// before. Plain state of the loop thread.

#include "absl/time/time.h"
#include "base/monotonic.h"

namespace somnus {

class StaleWeights {
 public:
  explicit StaleWeights(absl::Duration timeout) : timeout_(timeout) {}

  // A change or a recovery has ended, and left the engine without weights.
  void NoteMissing(MonotonicTime now) { deadline_ = now + timeout_; }
  void NoteFound() { deadline_ = absl::InfiniteDuration(); }
  // `being_brought`: a change or a recovery is under way.
  MonotonicTime GivesUpAt(bool being_brought) const {
    return being_brought ? absl::InfiniteDuration() : deadline_;
  }

 private:
  const absl::Duration timeout_;
  MonotonicTime deadline_ = absl::InfiniteDuration();
};

}  // namespace somnus
