#pragma once
// How long the executor waits for what.

#include "absl/time/time.h"
#include "base/monotonic.h"

namespace somnus {

struct ExecutorOptions {
  absl::Duration connect_timeout = absl::Seconds(20);
  absl::Duration fence_timeout = absl::Seconds(5);      // for a worker's device to become idle
  absl::Duration load_timeout = absl::Hours(2);         // of whatever reads the checkpoint: load, wake from 2
  absl::Duration lifecycle_timeout = absl::Minutes(5);  // join, profile, allocate, sleep, other wake-ups
  absl::Duration status_timeout = absl::Seconds(10);    // GetStatus of a rank, to learn what became of a call
  absl::Duration blame_grace = absl::Seconds(1);        // for the loss of a process to become known
  MonotonicClock now = MonotonicNow;                    // of step deadlines
};

}  // namespace somnus
