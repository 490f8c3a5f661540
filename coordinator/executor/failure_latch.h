#pragma once
// The first failure of a group of workers, kept for good, and the calls that the failure cancels. Thread
// safe.

#include <functional>
#include <set>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/monotonic.h"

namespace grpc {
class ClientContext;
}

namespace somnus {

class FailureLatch {
 public:
  // Ok until Fail was called.
  absl::Status status() const;
  // The first call's status is kept; that call cancels every registered RPC and runs the callback. Later
  // calls do nothing.
  void Fail(const absl::Status& status);
  // Fails with `status`, unless another cause becomes known within `grace`: the loss of a process says more
  // than the broken connection. Returns the cause that counts.
  absl::Status Blame(const absl::Status& status, absl::Duration grace);
  // Waits up to `grace` for a failure to become known; returns it, or ok.
  absl::Status AwaitFailure(absl::Duration grace) const;
  // `callback` runs once, at once when the failure has already happened. An empty function removes the
  // callback, and waits for a running callback.
  void SetCallback(std::function<void(absl::Status)> callback);

  // Fail cancels registered RPCs. False, and the RPC is not registered, when the latch has failed already.
  bool Register(grpc::ClientContext* context);
  void Unregister(grpc::ClientContext* context);

 private:
  mutable absl::Mutex mu_;
  absl::Status status_ ABSL_GUARDED_BY(mu_);
  bool failed_ ABSL_GUARDED_BY(mu_) = false;
  StopSignal failure_known_;  // stopped once failed_ is true
  std::set<grpc::ClientContext*> calls_ ABSL_GUARDED_BY(mu_);
  absl::Mutex callback_mu_;  // held while the callback runs; taken without mu_
  std::function<void(absl::Status)> callback_ ABSL_GUARDED_BY(callback_mu_);
};

}  // namespace somnus
