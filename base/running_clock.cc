#include "base/running_clock.h"

#include <signal.h>

#include <chrono>
#include <thread>
#include <utility>

namespace somnus {
namespace {

// A thread that wants to run may wait for some of the gap on a machine with far more threads than CPUs.
constexpr absl::Duration kLongestGap = absl::Milliseconds(500);
constexpr auto kTick = std::chrono::milliseconds(100);

// Never destroyed: its thread reads it until the process ends.
RunningClock& OfProcess() {
  static RunningClock& clock = *[] {
    auto* const made = new RunningClock(MonotonicNow, kLongestGap);
    // The thread takes no signal of the process: those are for others.
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    std::thread([made] {
      for (;; std::this_thread::sleep_for(kTick)) made->Now();
    }).detach();
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return made;
  }();
  return clock;
}

}  // namespace

RunningClock::RunningClock(MonotonicClock clock, absl::Duration longest_gap)
    : clock_(std::move(clock)), longest_gap_(longest_gap), last_(clock_()) {}

MonotonicTime RunningClock::Now() {
  const std::lock_guard<std::mutex> lock(mu_);
  const MonotonicTime now = clock_();
  if (now - last_ > longest_gap_) stood_still_ += now - last_ - longest_gap_;
  last_ = now;
  return now - stood_still_;
}

absl::Duration RunningClock::stood_still() {
  Now();
  const std::lock_guard<std::mutex> lock(mu_);
  return stood_still_;
}

MonotonicTime RunningNow() { return OfProcess().Now(); }

absl::Duration StoodStill() { return OfProcess().stood_still(); }

}  // namespace somnus
