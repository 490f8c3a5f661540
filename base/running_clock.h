#pragma once
// Time in which this process ran.
//
// A process may stand still: somebody stops it (SIGSTOP, a debugger), its virtual machine is paused or moved,
// its host is starved. Afterwards every deadline seems to have passed, though nobody else was late: what
// others have sent waits unread. Code that blames another party for a silence (a rank that does not reply, a
// worker without heartbeats, a client that sends nothing) measures by RunningNow, which counts at most
// `longest_gap` of any standstill. What is promised to others (a client's own deadline) stays MonotonicNow's.

#include <mutex>

#include "absl/time/time.h"
#include "base/monotonic.h"

namespace somnus {

// Of two readings of `clock` that are further apart than `longest_gap` it counts no more than that. Somebody
// has to read it at intervals well below that, whether or not the time is needed. Thread safe.
class RunningClock {
 public:
  RunningClock(MonotonicClock clock, absl::Duration longest_gap);

  MonotonicTime Now();
  // What it has not counted so far.
  absl::Duration stood_still();

 private:
  const MonotonicClock clock_;
  const absl::Duration longest_gap_;
  std::mutex mu_;  // not absl::Mutex: see monotonic.h
  MonotonicTime last_;
  absl::Duration stood_still_ = absl::ZeroDuration();
};

// Of this process. The first call of either starts a thread that reads the clock from then on, and begins
// with MonotonicNow. Comparable with other readings of the same function alone.
MonotonicTime RunningNow();
// How long this process has stood still since then: how far MonotonicNow is ahead.
absl::Duration StoodStill();

}  // namespace somnus
