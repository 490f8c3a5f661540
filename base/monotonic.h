#pragma once
// Time for deadlines, from a clock that never jumps.
//
// Wall time (absl::Now) may jump by hours when somebody corrects it. Code that decides that a peer is lost
// measures by MonotonicNow instead, and waits by StopSignal: in Debian 12's Abseil the timeouts of
// absl::Mutex end by wall time.

#include <condition_variable>
#include <functional>
#include <mutex>

#include "absl/time/time.h"

namespace somnus {

// Time since an arbitrary moment in the past. Only differences mean anything.
using MonotonicTime = absl::Duration;
// For classes whose clock tests replace.
using MonotonicClock = std::function<MonotonicTime()>;

MonotonicTime MonotonicNow();

// A stop flag that threads sleep on. Thread safe.
class StopSignal {
 public:
  // Ends every wait, now and later.
  void Stop();
  bool stopped() const;
  // Returns true as soon as Stop has been called, or false after `duration`, which may be infinite.
  bool WaitFor(absl::Duration duration) const;

 private:
  // Not absl::Mutex, see above.
  mutable std::mutex mu_;
  mutable std::condition_variable changed_;
  bool stopped_ = false;
};

}  // namespace somnus
