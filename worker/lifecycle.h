#pragma once
// The state of a worker, and the error that keeps the worker from being used.

#include <cstdint>
#include <initializer_list>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"

namespace somnus {

enum class WorkerState { kCreated, kLoaded, kAwake, kAsleep, kFailed };
// "created", "loaded", ...
const char* WorkerStateName(WorkerState state);

// Thread safe. A worker that has failed keeps the state below the failure: a failure of an epoch ends with
// the epoch, a failure for good never ends.
class Lifecycle {
 public:
  // `sleep_level` is 0 but for kAsleep. Not for kFailed.
  void Set(WorkerState state, int sleep_level = 0);
  // Fail and FailForGood return true for the first failure, and keep the error of the first failure. Fail: a
  // step or a collective of `epoch` failed, which leaves weights and KV cache whole; ignored when the epoch
  // is over.
  bool Fail(int64_t epoch, const absl::Status& error);
  bool FailForGood(const absl::Status& error);
  // The failure of an older epoch is over.
  void BeginEpoch(int64_t epoch);
  // `prepared`: a transition is prepared from now on; false: the transition was committed or aborted.
  void SetTransitionPrepared(bool prepared);

  // kFailed while there is an error.
  WorkerState state() const;
  int sleep_level() const;  // 0 in other states than kAsleep
  // FailedPrecondition names call and state; a failed worker's first error.
  absl::Status Require(std::initializer_list<WorkerState> allowed, const char* call) const;
  bool transition_prepared() const;
  // FailedPrecondition names the call: a transition is prepared.
  absl::Status RequireNoTransition(const char* call) const;

 private:
  mutable absl::Mutex mu_;
  WorkerState state_ ABSL_GUARDED_BY(mu_) = WorkerState::kCreated;
  int sleep_level_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t epoch_ ABSL_GUARDED_BY(mu_) = 0;
  absl::Status error_ ABSL_GUARDED_BY(mu_);
  bool for_good_ ABSL_GUARDED_BY(mu_) = false;
  bool transition_prepared_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace somnus
