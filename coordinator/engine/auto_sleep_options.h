#pragma once
// The options of an AutoSleepEngine. Plain data.

#include "absl/time/time.h"
#include "base/monotonic.h"
#include "coordinator/residency/wake_retries.h"

namespace somnus {

// The fate of a request that comes while an operator's sleep holds.
enum class SleepArrivals {
  kQueue,   // the request waits until the engine is woken
  kReject,  // the request is refused
  kWake,    // the request wakes the engine
};

struct AutoSleepOptions {
  SleepArrivals arrivals = SleepArrivals::kQueue;
  absl::Duration idle_sleep;  // without a request, until the engine goes to sleep; 0: never
  int32_t idle_level = 1;
  // Of wake-ups for requests. The pause after a sleep that has failed is idle_sleep or retry.first_pause,
  // doubles, and is at most the longer of idle_sleep and retry.longest_given_up.
  WakeRetryOptions retry;
  MonotonicClock now = MonotonicNow;
};

}  // namespace somnus
