#pragma once
// What SharedDevices is made with. Plain data.

#include "absl/time/time.h"
#include "base/monotonic.h"
#include "coordinator/engine/auto_sleep_options.h"
#include "coordinator/residency/wake_retries.h"
#include "coordinator/several_models/kv_shares.h"
#include "coordinator/several_models/residency_policy.h"

namespace somnus {

struct SharedDevicesOptions {
  ResidencyOptions residency;
  SleepArrivals arrivals = SleepArrivals::kQueue;  // while an operator's sleep holds
  WakeRetryOptions retry;  // of wake-ups for requests; a failed sleep is tried again after retry.first_pause
  // The pause until a failed engine is brought up again; the pause doubles with every failure.
  absl::Duration revival_pause = absl::InfiniteDuration();
  absl::Duration longest_revival_pause = absl::Minutes(10);
  absl::Duration operator_wait = absl::Minutes(2);  // an operator's wake-up waits so long for room, at most
  KvShareOptions kv_shares;
  // Between two looks at what caches need, while requests are open. No flag: a look costs microseconds, and
  // kv_hold says how long what it has seen counts.
  absl::Duration kv_period = absl::Milliseconds(200);
  absl::Duration kv_hold = absl::Seconds(5);  // so long a model is taken to need what it has needed
  // A model that waits is left to what caches can give for so long; then others sleep for it.
  absl::Duration kv_patience = absl::Seconds(1);
  MonotonicClock now = MonotonicNow;
};

}  // namespace somnus
