#pragma once
// Time in which this process ran.
//
// A process may stand still: a user stops the process (SIGSTOP, a debugger), its virtual machine is paused or
// moved, its host is starved. Afterwards every deadline seems to have passed, though no peer was late:
// messages that peers have sent wait unread. Code that blames a peer for a silence (a rank that does not
// reply, a worker without heartbeats, a client that sends nothing) measures by RunningNow, which counts at
// most `longest_gap` of any standstill. Promises to peers (a client's own deadline) stay MonotonicNow's.

#include <mutex>

#include "absl/time/time.h"
#include "base/monotonic.h"

namespace somnus {

// Counts no more than `longest_gap` between two consecutive readings of `clock`. A thread has to read the
// time at intervals well below `longest_gap`, whether or not the time is needed. Thread safe.
class RunningClock {
 public:
  RunningClock(MonotonicClock clock, absl::Duration longest_gap);

  MonotonicTime Now();
  // The time that Now has not counted so far.
  absl::Duration stood_still();

 private:
  const MonotonicClock clock_;
  const absl::Duration longest_gap_;
  std::mutex mu_;  // not absl::Mutex: see monotonic.h
  MonotonicTime last_;
  absl::Duration stood_still_ = absl::ZeroDuration();
};

// The running time of this process. The first call of RunningNow or StoodStill starts a thread that reads the
// clock from then on; the time begins with MonotonicNow. A reading is comparable with readings of the same
// function alone.
MonotonicTime RunningNow();
// How long this process has stood still since the first call: how far MonotonicNow is ahead of RunningNow.
absl::Duration StoodStill();

}  // namespace somnus
