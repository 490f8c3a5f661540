#pragma once
// The members of the group of workers: registration, ranks, replacement, heartbeats and the progress that
// heartbeats report. Membership does no I/O; callers pass the time of a monotonic clock. Thread safe.
//
// A group forms: workers register until every place is taken. Then the group is complete, and every member
// has a rank for life, and is missed when the member falls silent. Reopen takes a member out; the group forms
// again around the remaining members, and is complete once more when a newcomer has the place. A worker that
// finds no place open tries again, and so serves as a spare: a spare may come before the loss of the worker
// that it replaces is known.

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/monotonic.h"
#include "coordinator/membership/adoption.h"
#include "proto/cluster.pb.h"

namespace somnus {

struct MembershipOptions {
  int32_t world_size = 1;
  std::string version;   // a worker of another version is refused
  std::string build_id;  // a worker of another build is refused; empty: the group's first member decides
  // The device that the group runs on; unspecified: the device that each worker found. On CPUs all members
  // have the same cpu_isa, as long as this object lives: the cpu_isa of the first complete group.
  v1::DeviceType device = v1::DEVICE_TYPE_UNSPECIFIED;
  absl::Duration hang_timeout = absl::Seconds(4);  // without a heartbeat, after which a member counts as lost
  // A group is complete only once a heartbeat of every member has come after the last member registered. This
  // is for remote workers: no process table shows their death, and a worker that has just died looks alive
  // otherwise.
  bool confirm_members = false;
  absl::Duration stall_threshold = absl::Seconds(60);  // in one step, after which a rank counts as stalled
  // Decides about workers that register with a snapshot and are no members. Called without a lock. Null: all
  // such workers may stay.
  std::function<Adoption(const v1::RegisterRequest&)> adopt;
};

// A member that has sent no heartbeat for longer than hang_timeout.
struct SilentMember {
  int32_t rank = 0;
  v1::RegisterRequest worker;
  absl::Status status;  // Unavailable: "rank 1 (host2, pid 77) has sent no heartbeat for 4.1s"
};

// The state of a rank's member.
struct MemberStatus {
  v1::RegisterRequest worker;
  absl::Duration silence;  // since the registration or the last heartbeat
  // As of the last heartbeat.
  int64_t group_epoch = 0;
  int64_t last_step_id = 0;
  bool step_in_progress = false;
};

class Membership {
 public:
  // A condition that returns an error ends the wait with that error. Called without a lock.
  using StopCondition = std::function<absl::Status()>;

  explicit Membership(MembershipOptions options) : options_(std::move(options)) {}

  // InvalidArgument names a field; PermissionDenied: a worker that Reopen has taken out; FailedPrecondition:
  // another version, build or cpu_isa; Unavailable: no place is open, or the preferred place is taken, for
  // now. The same worker may register again. After an Ok the worker is a member unless `adoption`, which may
  // be null where no request has a snapshot, says that the worker has to leave.
  absl::Status Register(const v1::RegisterRequest& request, MonotonicTime now, Adoption* adoption = nullptr);
  // Returns whether the worker is a member; a worker that is no member may try to register again.
  bool Heartbeat(const v1::HeartbeatRequest& request, MonotonicTime now);

  // Returns the complete group in the order of ranks: a member that has a rank already keeps the rank, every
  // newcomer that prefers a rank has that rank, and all other newcomers fill the remaining places by host,
  // then by arrival. A group is complete once all members are there and each has sent a sign of life within
  // the last 5 seconds (or hang_timeout, where that is shorter). To be called for the first group and again
  // after Reopen. DeadlineExceeded says how many came. `stop`, where given, is asked at first and after every
  // Recheck: so a caller that makes its condition true before calling Recheck ends this wait alone.
  absl::StatusOr<std::vector<v1::RegisterRequest>> WaitForGroup(absl::Duration timeout,
                                                                const StopCondition& stop = nullptr);
  void Recheck();
  // Ends every wait, now and later, with `reason`; the first reason counts.
  void Interrupt(const absl::Status& reason);

  // The place of `rank` is free again. The worker that had the place is no member any longer, and cannot come
  // back under the same worker_id. In a group that has never been complete Reopen is about the worker that
  // prefers the rank. Nothing happens where nobody has the place.
  void Reopen(int32_t rank);

  // Whether a member has the rank, or prefers the rank and waits for the group to be complete.
  bool IsTaken(int32_t rank) const;

  // By rank; an empty element is an open place, or the place of a newcomer that gets its rank only when the
  // group is complete.
  std::vector<std::optional<MemberStatus>> Members(MonotonicTime now) const;

  // DropSilent and CheckHeartbeats are to be called regularly, together and at intervals far below
  // hang_timeout / 4. After a longer interval, the caller itself did not run (a suspended machine, a starved
  // process), and heartbeats may wait unread: all members get hang_timeout anew.
  //
  // Forgets newcomers of a forming group that have been silent for hang_timeout: other workers may take their
  // places. Returns their names, for the log.
  std::vector<std::string> DropSilent(MonotonicTime now);
  // Returns the members with a rank that have been silent for longer than hang_timeout, each member once.
  std::vector<SilentMember> CheckHeartbeats(MonotonicTime now);
  // Unavailable names the rank that has reported the same unfinished step for longer than stall_threshold;
  // when there are several, the rank that is furthest behind, since all other ranks may be waiting for that
  // rank; of equals the rank that has been silent for longest.
  absl::Status CheckProgress(MonotonicTime now) const;

 private:
  struct Member {
    v1::RegisterRequest request;
    int32_t rank = -1;  // -1 until the group is complete for the first time with this member
    MonotonicTime last_seen;
    bool reported = false;  // CheckHeartbeats has returned this member
    int64_t group_epoch = 0;
    // The contents of the last heartbeat, and since when heartbeats have said the same.
    bool step_in_progress = false;
    int64_t last_step_id = 0;
    MonotonicTime same_since;

    // The member's rank, or else preferred rank; -1: any.
    int32_t place() const {
      if (rank >= 0 || !request.has_preferred_rank()) return rank;
      return request.preferred_rank();
    }
  };
  // The checks that need no look at other members.
  absl::Status CheckRequest(const v1::RegisterRequest& request) const;
  absl::Status CheckBuild(const v1::RegisterRequest& request) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status CheckCpuIsa(const v1::RegisterRequest& request) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool RunsOnCpu(const v1::RegisterRequest& worker) const;
  // Takes note of a member's sign of life; false where the worker is none.
  bool NoteMember(const std::string& worker_id, MonotonicTime now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Ok when there is a place for `request`; else says why not.
  absl::Status FindPlace(const v1::RegisterRequest& request) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void UpdateComplete(MonotonicTime now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Gives every member of a full group its rank and sorts members by rank.
  void AssignRanks() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Makes every WaitForGroup look again.
  void Wake() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Returns whether the member has been silent for longer than hang_timeout while members were watched.
  bool IsSilent(const Member& member, MonotonicTime now) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Takes note that the members are watched at `now`.
  void NoteWatch(MonotonicTime now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const MembershipOptions options_;
  mutable absl::Mutex mu_;
  // By arrival; by rank while complete.
  std::vector<Member> members_ ABSL_GUARDED_BY(mu_);
  std::deque<std::string> taken_out_ ABSL_GUARDED_BY(mu_);  // worker_ids of the last members that Reopen took
  MonotonicTime full_since_ ABSL_GUARDED_BY(mu_);           // when the last member came
  bool complete_ ABSL_GUARDED_BY(mu_) = false;              // while true, nobody joins or is dropped
  absl::Status interruption_ ABSL_GUARDED_BY(mu_);
  std::optional<std::string> cpu_isa_ ABSL_GUARDED_BY(mu_);  // of the first complete group; none on GPUs
  // Silence counts from watched_since_ at the earliest.
  MonotonicTime watched_since_ ABSL_GUARDED_BY(mu_) = -absl::InfiniteDuration();
  MonotonicTime last_watch_ ABSL_GUARDED_BY(mu_) = -absl::InfiniteDuration();
  // Stopped, and replaced, whenever a wait should look again.
  std::shared_ptr<StopSignal> changed_ ABSL_GUARDED_BY(mu_) = std::make_shared<StopSignal>();
};

}  // namespace somnus
