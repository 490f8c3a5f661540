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
  WakeRetryOptions retry;  // of wake-ups for requests
  MonotonicClock now = MonotonicNow;
};

}  // namespace somnus
