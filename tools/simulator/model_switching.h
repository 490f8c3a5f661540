#pragma once
// Several models that share a device, in virtual time, under a policy that says who is awake: when each token
// of each request comes, and how much memory is held. A model is as simple as the question allows: a step of
// all open requests takes as long as a step of a single request.

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/time/time.h"
#include "base/monotonic.h"
#include "coordinator/several_models/residency_policy.h"

namespace somnus {

struct SimulatedModel {
  int64_t device_bytes = 1;
  int64_t backup_bytes = 0;
  int priority = 0;
  bool pinned = false;
  absl::Duration wake_up;            // from level 1
  absl::Duration wake_up_discarded;  // from level 2
  // From level 2, when a prefetch has ended before, and the time of the prefetch. Not set: a prefetch is of
  // no use.
  absl::Duration wake_up_prefetched = absl::InfiniteDuration();
  absl::Duration prefetch;
  absl::Duration sleep;
  absl::Duration step;     // of one token for all open requests; models that compute share the device
  absl::Duration prefill;  // of a request, once
  // The clients' targets: time to the first token, and time for every further token.
  absl::Duration ttft_target = absl::Seconds(10);
  absl::Duration tpot_target = absl::Milliseconds(100);
};

struct SimulatedRequest {
  int model = 0;
  MonotonicTime arrival;
  int num_tokens = 1;
};

using SwitchingPolicy = std::function<ResidencyPlan(MonotonicTime, const std::vector<ModelView>&)>;

struct SwitchingOptions {
  // Whether this wake-up of the model fails; empty: none does.
  std::function<bool(int model)> wake_up_fails;
  absl::Duration retry_after = absl::Seconds(1);
};

struct RequestOutcome {
  absl::Duration ttft = absl::InfiniteDuration();
  absl::Duration latency = absl::InfiniteDuration();  // infinite: the request has not ended
  int num_tokens_in_time = 0;
};

struct SwitchingOutcome {
  std::vector<RequestOutcome> requests;
  bool stuck = false;  // requests are open, and nothing would ever happen again
  int64_t num_wake_ups = 0;
  int64_t num_prefetches = 0;
  int64_t num_preemptions = 0;                              // sleeps with open requests
  absl::Duration switching;                                 // sum of all sleeps and wake-ups
  absl::Duration shortest_stay = absl::InfiniteDuration();  // awake
  int64_t most_device_bytes = 0;
  int64_t most_host_bytes = 0;
  MonotonicTime end;
};

// All models sleep at first, at level 2. `requests` are in the order of their arrivals.
SwitchingOutcome SimulateSwitching(const std::vector<SimulatedModel>& models,
                                   const std::vector<SimulatedRequest>& requests,
                                   const SwitchingPolicy& policy, const SwitchingOptions& options = {});

// A policy to compare PlanResidency with: a waiting model is woken at once, and the least recently used
// models make room, even if they are busy.
ResidencyPlan PlanNaiveLru(int64_t device_memory_budget, const std::vector<ModelView>& models);

}  // namespace somnus
