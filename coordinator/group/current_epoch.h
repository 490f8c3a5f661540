#pragma once
// The epoch of a group that losses are reported to, and the end of everything that waits for the group.
//
// Thread safe. An epoch ends without the lock, since the end waits for threads that may report losses.

#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "base/monotonic.h"
#include "coordinator/executor/failure_latch.h"
#include "coordinator/executor/group_epoch.h"

namespace somnus {

class CurrentEpoch {
 public:
  // Ok until Interrupt was called.
  absl::Status Interruption() const;
  // Ends every WaitFor, now and later; no further epoch is set. The first reason stays.
  void Interrupt(const absl::Status& reason);
  // Returns true as soon as Interrupt was called, or false after `duration`.
  bool WaitFor(absl::Duration duration) const { return stop_.WaitFor(duration); }

  // From now on losses are reported to `epoch`. An interruption is the error.
  absl::Status Set(std::shared_ptr<GroupEpoch> epoch);
  // Null before the first Set and after Take.
  std::shared_ptr<GroupEpoch> Get() const;
  // Afterwards losses are reported to no epoch.
  std::shared_ptr<GroupEpoch> Take();
  // A loss fails the epoch, and the Fence calls under way.
  void ReportLoss(const absl::Status& reason);

  // Between the two calls losses also fail `latch`. Both return an interruption.
  absl::Status BeginFence(FailureLatch* latch);
  absl::Status EndFence();

 private:
  mutable absl::Mutex mu_;
  absl::Status interruption_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<GroupEpoch> epoch_ ABSL_GUARDED_BY(mu_);  // being formed or served
  FailureLatch* fencing_ ABSL_GUARDED_BY(mu_) = nullptr;    // of the Fence calls under way
  StopSignal stop_;
};

}  // namespace somnus
