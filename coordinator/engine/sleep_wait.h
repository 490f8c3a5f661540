#pragma once
// How long the oldest open request has waited for memory that sleeps. A value without a lock; its owner
// guards it.

#include <algorithm>
#include <optional>

#include "absl/time/time.h"
#include "base/monotonic.h"
#include "coordinator/residency/engine_state.h"

namespace somnus {

class SleepWait {
 public:
  // To be called at every change of the state. A recovery does not end the wait.
  void NoteState(EngineState state, MonotonicTime now) {
    const bool sleeps = state == EngineState::kFallingAsleep || state == EngineState::kAsleep ||
                        state == EngineState::kWaking;
    if (sleeps && !since_.has_value()) since_ = now;
    if (!sleeps && state != EngineState::kRecovering) since_.reset();
  }
  // Of a request that came at `arrival`; not set: none is open. 0: the memory does not sleep.
  absl::Duration Of(std::optional<absl::Time> arrival, absl::Time now, MonotonicTime monotonic_now) const {
    if (!arrival.has_value() || !since_.has_value()) return absl::ZeroDuration();
    return std::max(std::min(now - *arrival, monotonic_now - *since_), absl::ZeroDuration());
  }

 private:
  std::optional<MonotonicTime> since_;
};

}  // namespace somnus
