#include "coordinator/executor/failure_latch.h"

#include <grpcpp/client_context.h>

#include <utility>

namespace somnus {

absl::Status FailureLatch::status() const {
  absl::MutexLock lock(&mu_);
  return status_;
}

void FailureLatch::Fail(const absl::Status& status) {
  {
    absl::MutexLock lock(&mu_);
    if (failed_) return;
    failed_ = true;
    status_ = status;
    for (grpc::ClientContext* call : calls_) call->TryCancel();
  }
  failure_known_.Stop();
  absl::MutexLock lock(&callback_mu_);
  if (callback_) std::exchange(callback_, nullptr)(status);
}

absl::Status FailureLatch::Blame(const absl::Status& status, absl::Duration grace) {
  absl::Status cause = AwaitFailure(grace);
  if (!cause.ok()) return cause;
  Fail(status);
  return this->status();
}

absl::Status FailureLatch::AwaitFailure(absl::Duration grace) const {
  failure_known_.WaitFor(grace);
  return status();
}

void FailureLatch::SetCallback(std::function<void(absl::Status)> callback) {
  absl::MutexLock lock(&callback_mu_);
  callback_ = std::move(callback);
  const absl::Status now = status();
  if (callback_ && !now.ok()) std::exchange(callback_, nullptr)(now);
}

bool FailureLatch::Register(grpc::ClientContext* context) {
  absl::MutexLock lock(&mu_);
  if (failed_) return false;
  calls_.insert(context);
  return true;
}

void FailureLatch::Unregister(grpc::ClientContext* context) {
  absl::MutexLock lock(&mu_);
  calls_.erase(context);
}

}  // namespace somnus
