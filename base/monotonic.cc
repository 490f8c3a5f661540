#include "base/monotonic.h"

#include <algorithm>
#include <chrono>

namespace somnus {

MonotonicTime MonotonicNow() { return absl::FromChrono(std::chrono::steady_clock::now().time_since_epoch()); }

void StopSignal::Stop() {
  {
    const std::lock_guard<std::mutex> lock(mu_);
    stopped_ = true;
  }
  changed_.notify_all();
}

bool StopSignal::stopped() const {
  const std::lock_guard<std::mutex> lock(mu_);
  return stopped_;
}

bool StopSignal::WaitFor(absl::Duration duration) const {
  std::unique_lock<std::mutex> lock(mu_);
  // A year stands for infinity: the end of the wait must be a time that the clock can represent.
  const absl::Duration bounded = std::clamp(duration, absl::ZeroDuration(), absl::Hours(24 * 365));
  changed_.wait_for(lock, absl::ToChronoNanoseconds(bounded), [this] { return stopped_; });
  return stopped_;
}

}  // namespace somnus
