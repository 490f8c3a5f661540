#pragma once
// The worker's connection to its coordinator: registration, heartbeats, and noticing that the coordinator is
// gone. A coordinator that comes in its place, at the same address, does not know the worker: the worker
// registers again, with a snapshot of all that the worker holds.
//
// Owns a channel and, from Register on, a heartbeat thread. `on_leave` is called at most once, from that
// thread, with the reason why the worker has to leave: the coordinator's refusal, or Unavailable when none
// has taken the worker for worker_grace. `on_leave` must not block. Thread safe.

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/monotonic.h"
#include "base/running_clock.h"
#include "proto/cluster.pb.h"
#include "proto/cluster_trust.h"

namespace somnus {

struct CoordinatorLinkOptions {
  std::string coordinator;                             // "host:port" or "unix:/path"
  ClusterTrust trust;                                  // by what both know each other
  absl::Duration register_timeout = absl::Minutes(5);  // for the coordinator to give it a place
  absl::Duration worker_grace = absl::Seconds(30);     // without one answered heartbeat
  absl::Duration heartbeat_interval;                   // zero: what the coordinator says
  MonotonicClock now = RunningNow;                     // measures the timeout and the grace
};

class CoordinatorLink {
 public:
  using Beat = std::function<void(v1::HeartbeatRequest*)>;  // fills in all but worker_id
  // Fills in what has changed since the first registration.
  using Refresh = std::function<void(v1::RegisterRequest*)>;

  // Stops the heartbeats.
  virtual ~CoordinatorLink() = default;
  static std::unique_ptr<CoordinatorLink> Create(const CoordinatorLinkOptions& options);

  // Blocks until the worker has a place in the group; tries again, with pauses of at most a second, while the
  // coordinator cannot be reached or has no place. DeadlineExceeded after register_timeout, Cancelled after
  // Stop, else the coordinator's refusal.
  virtual absl::Status Register(const v1::RegisterRequest& request) = 0;
  // To be called once, after Register.
  virtual void StartHeartbeats(Beat beat, Refresh refresh, std::function<void(absl::Status)> on_leave) = 0;
  // Ends a call that waits and all that would come; returns at once. Idempotent.
  virtual void Stop() = 0;
};

}  // namespace somnus
