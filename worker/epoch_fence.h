#pragma once
// The epoch that this worker is in (proto/worker.proto), and the check that every request passes.

#include <cstdint>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"

namespace somnus {

// Thread safe. Every error is FailedPrecondition and names the request's epoch and the worker's.
class EpochFence {
 public:
  // Moves on to `epoch`: from now on no request of an older epoch is admitted, and no request of `epoch`
  // until Complete. Ok also for the epoch that the worker is in, as long as no request of that epoch was
  // admitted.
  absl::Status Begin(int64_t epoch);
  // The work of older epochs has ended. Does nothing when a later epoch has begun meanwhile.
  void Complete(int64_t epoch);

  // Ok for a request of the worker's epoch.
  absl::Status Check(int64_t epoch) const;
  // Check. After a request that passes, Begin refuses the same epoch.
  absl::Status Admit(int64_t epoch);
  // A worker that is told to leave obeys its own coordinator and later coordinators: Ok but for an older
  // epoch.
  absl::Status CheckShutdown(int64_t epoch) const;

  // 0 before the first Begin.
  int64_t epoch() const;
  // True between Begin(epoch) and Complete(epoch).
  bool pending(int64_t epoch) const;

 private:
  absl::Status CheckLocked(int64_t epoch) const ABSL_SHARED_LOCKS_REQUIRED(mu_);

  mutable absl::Mutex mu_;
  int64_t epoch_ ABSL_GUARDED_BY(mu_) = 0;
  bool complete_ ABSL_GUARDED_BY(mu_) = false;
  bool used_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace somnus
