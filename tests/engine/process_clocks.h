#pragma once
// The three clocks of an engine's process, which a test moves: the monotonic one, the same without the time
// in which the process was stopped, and the wall's.

#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "coordinator/engine/engine_loop.h"

namespace somnus {

// Outlives the engines that read the clocks. Thread safe.
class ProcessClocks {
 public:
  void Set(EngineOptions* options) {
    options->running_now = [this] { return Now().running; };
    options->monotonic_now = [this] { return Now().monotonic; };
    options->now = [this] { return Now().wall; };
  }
  void Pass(absl::Duration duration) { Move(duration, duration, duration); }
  void PassWhileStopped(absl::Duration duration) { Move(duration, absl::ZeroDuration(), duration); }
  void SetWallAhead(absl::Duration duration) { Move(absl::ZeroDuration(), absl::ZeroDuration(), duration); }

  const absl::Time begin = absl::FromUnixSeconds(1'800'000'000);  // of the wall's clock

 private:
  struct Times {
    MonotonicTime monotonic, running;
    absl::Time wall;
  };
  Times Now() const {
    absl::MutexLock lock(&mu_);
    return times_;
  }
  void Move(absl::Duration monotonic, absl::Duration running, absl::Duration wall) {
    absl::MutexLock lock(&mu_);
    times_.monotonic += monotonic;
    times_.running += running;
    times_.wall += wall;
  }

  mutable absl::Mutex mu_;
  Times times_ ABSL_GUARDED_BY(mu_) = {absl::Seconds(5), absl::Seconds(5), begin};
};

}  // namespace somnus
