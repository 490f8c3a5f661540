#pragma once
// The members of the group of workers: registration, ranks, heartbeats and the progress that they report. It
// does no I/O; callers pass the time of a monotonic clock. Thread safe.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/monotonic.h"
#include "proto/cluster.pb.h"

namespace somnus {

struct MembershipOptions {
  int32_t world_size = 1;
  std::string version;      // a worker of another version is refused
  std::string spawn_token;  // workers must show it; empty: workers started by hand, which show none
  absl::Duration heartbeat_timeout = absl::Seconds(30);
  // A group is complete only once a heartbeat of every member has come after the last one registered. This is
  // for remote workers, whose death no process table shows: one that has just died looks alive otherwise.
  bool confirm_members = false;
  absl::Duration stall_threshold = absl::Seconds(60);  // in one step, after which a rank counts as stalled
};

class Membership {
 public:
  explicit Membership(MembershipOptions options) : options_(std::move(options)) {}

  // InvalidArgument, PermissionDenied (token), FailedPrecondition (version, a complete group), Unavailable
  // (its place is taken in a group that is still forming: the worker that has it may turn out to be dead, so
  // this one may try again). The same worker may register again, with the same request.
  absl::Status Register(const v1::RegisterRequest& request, MonotonicTime now);
  // Returns whether the worker is a member; one that is not should exit.
  bool Heartbeat(const v1::HeartbeatRequest& request, MonotonicTime now);

  // Returns the complete group in the order of ranks: every worker that prefers a rank has it, and the others
  // fill the places that are left by host, then by arrival. A group is complete once it has all its members
  // and each has sent a sign of life within the last 5 seconds (or heartbeat_timeout, where that is shorter).
  // DeadlineExceeded says how many came; Interrupt ends the wait with its status.
  absl::StatusOr<std::vector<v1::RegisterRequest>> WaitForGroup(absl::Duration timeout);
  void Interrupt(const absl::Status& reason);

  // Forgets members of a group that is still forming which have been silent for heartbeat_timeout: others may
  // take their places. Returns their names, for the log. To be called regularly.
  std::vector<std::string> DropSilent(MonotonicTime now);
  // Unavailable names the first rank of the complete group that has been silent for longer than
  // heartbeat_timeout.
  absl::Status CheckHeartbeats(MonotonicTime now) const;
  // Unavailable names the rank that has reported the same unfinished step for longer than stall_threshold;
  // the one that is furthest behind when there are several, since the others may be waiting for it; of equals
  // the one that has been silent for longest.
  absl::Status CheckProgress(MonotonicTime now) const;

 private:
  struct Member {
    v1::RegisterRequest request;
    MonotonicTime last_seen;
    // What the last heartbeat said, and since when heartbeats have said the same.
    bool step_in_progress = false;
    int64_t last_step_id = 0;
    MonotonicTime same_since;
  };
  // Ok when there is a place for `request`; else says why not.
  absl::Status FindPlace(const v1::RegisterRequest& request) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void UpdateComplete(MonotonicTime now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Sorts the members of a complete group by rank.
  void AssignRanks() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const MembershipOptions options_;
  mutable absl::Mutex mu_;
  std::vector<Member> members_ ABSL_GUARDED_BY(mu_);  // by arrival; by rank once the group was handed out
  MonotonicTime full_since_ ABSL_GUARDED_BY(mu_);     // when the last member came
  bool complete_ ABSL_GUARDED_BY(mu_) = false;        // once true, nobody joins or is dropped
  bool handed_out_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status interruption_ ABSL_GUARDED_BY(mu_);
  StopSignal settled_;  // stopped once the group is complete or the wait for it is interrupted
};

}  // namespace somnus
