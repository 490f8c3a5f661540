#pragma once
// The options of SharedDevices. Plain data.

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
  // For wake-ups for requests. The pauses after sleeps that have failed are retry.first_pause to
  // retry.longest_pause, too.
  WakeRetryOptions retry;
  // The pause until a failed engine is brought up again; the pause doubles with every failure.
  absl::Duration revival_pause = absl::InfiniteDuration();
  absl::Duration longest_revival_pause = absl::Minutes(10);
  absl::Duration operator_wait =
      absl::Minutes(2);  // the longest time for which an operator's wake-up waits for room
  KvShareOptions kv_shares;
  // The time between two looks at the needs of KV caches, while requests are open. No flag: a look costs
  // microseconds, and kv_hold says how long a need that was seen counts.
  absl::Duration kv_period = absl::Milliseconds(200);
  absl::Duration kv_hold = absl::Seconds(5);  // how long a need of the past counts
  // How long a waiting model waits for other KV caches to shrink before a model is put to sleep.
  absl::Duration kv_patience = absl::Seconds(1);
  MonotonicClock now = MonotonicNow;
};

}  // namespace somnus
