#include "base/running_clock.h"

#include <pthread.h>
#include <signal.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <utility>

namespace somnus {
namespace {

// A thread that wants to run may wait for some of the gap on a machine with far more threads than CPUs.
constexpr absl::Duration kLongestGap = absl::Milliseconds(500);
constexpr auto kTick = std::chrono::milliseconds(100);

// The clock is never destroyed: its thread reads the clock until the process ends. Null before the first
// call.
std::atomic<RunningClock*> g_of_process{nullptr};

void StartReader(RunningClock* clock) {
  // The thread blocks all signals: the process' signals go to other threads.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread([clock] {
    for (;; std::this_thread::sleep_for(kTick)) clock->Now();
  }).detach();
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

RunningClock& OfProcess() {
  RunningClock* clock = g_of_process.load();
  if (clock != nullptr) return *clock;
  auto made = std::make_unique<RunningClock>(MonotonicNow, kLongestGap);
  if (!g_of_process.compare_exchange_strong(clock, made.get())) return *clock;
  // A forked child has no thread of its parent, and begins anew.
  static const int forks = pthread_atfork(nullptr, nullptr, [] { g_of_process.store(nullptr); });
  (void)forks;
  StartReader(made.get());
  return *made.release();
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
