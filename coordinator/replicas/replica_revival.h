#pragma once
// Failed replicas are tried again: after a pause, by an operator's call, or in a roll.
//
// Each replica has pauses by the rule of retry_backoff.h. While a lifecycle call is under way, and unless
// the engine is awake, the retries wait: a revived replica comes back awake, and a lifecycle call that is
// being undone must not find the replica among the replicas that it has to bring back.
//
// ReplicaRevival owns the pauses, which mu_ guards; mu_ is taken before a loop's own lock. Thread safe:
// replicas report on their loops' threads, the set's thread tries again, callers revive. `parts` is borrowed.

#include <cstddef>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "coordinator/replicas/replica_options.h"
#include "coordinator/replicas/set_parts.h"
#include "coordinator/residency/retry_backoff.h"

namespace somnus {

class ReplicaRevival {
 public:
  ReplicaRevival(const SetParts& parts, const ReplicaRetry& retry, size_t num_replicas);
  ReplicaRevival(const ReplicaRevival&) = delete;

  // The replica's state has changed.
  void NoteState(size_t replica);
  // Tries the replicas again whose time has come. Returns how long until the next replica's time.
  absl::Duration RetryDue();
  // As ReviveRequest says. Beside replicas that serve, the failed replicas come back awake.
  absl::Status Revive(bool asleep);
  // Tries the replica once more, and waits for the outcome.
  absl::Status ReviveAndWait(size_t replica);
  // Ends when no replica recovers. FailedPrecondition: the engine drains.
  absl::Status AwaitSettled();

 private:
  void NoteTry(size_t replica);

  const SetParts& parts_;
  const bool restart_workers_;
  absl::Mutex mu_;
  std::vector<RetryBackoff> backoffs_ ABSL_GUARDED_BY(mu_);  // by replica
};

}  // namespace somnus
