#pragma once
// The timeouts of the executor, and the form of its groups.

#include <cstdint>
#include <memory>
#include <string>

#include "absl/time/time.h"
#include "base/monotonic.h"

namespace somnus {

class TransitionSpeeds;

struct ExecutorOptions {
  absl::Duration connect_timeout = absl::Seconds(20);
  absl::Duration fence_timeout = absl::Seconds(5);      // for a worker's device to become idle
  absl::Duration load_timeout = absl::Hours(2);         // of every call that reads the checkpoint
  absl::Duration checksum_timeout = absl::Minutes(10);  // of reading all weights between steps
  absl::Duration lifecycle_timeout = absl::Minutes(5);  // join, allocate
  // Until the ranks' speeds are measured, each phase of a sleep or a wake-up has transition_timeout, and the
  // time to move the phase's bytes at transition_bytes_per_s, which is a fraction of the slowest machine's
  // speed; a phase that reads weights has load_timeout besides.
  absl::Duration transition_timeout = absl::Minutes(1);
  double transition_bytes_per_s = 100e6;
  // Afterwards a phase has measured_timeout, and measured_slack times its time at the measured speeds, if the
  // sum is less (transition_speeds.h).
  absl::Duration measured_timeout = absl::Seconds(20);
  double measured_slack = 10;
  std::shared_ptr<TransitionSpeeds> speeds;       // of all epochs of a group; null: each epoch begins anew
  double prefetch_cpu_share = 0.125;              // of one processor, on every rank
  absl::Duration blame_grace = absl::Seconds(1);  // for the loss of a process to become known
  int32_t num_stages = 1;                         // of the pipeline; divides the number of ranks
  MonotonicClock now = MonotonicNow;              // of the deadlines of steps and calls
  std::string way_to_longer_deadlines;  // the end of the error of a call that its deadline has ended
};

}  // namespace somnus
