#include "worker/epoch_fence.h"

#include "absl/strings/str_cat.h"

namespace somnus {

absl::Status EpochFence::Begin(int64_t epoch) {
  absl::MutexLock lock(&mu_);
  if (epoch < 1) {
    return absl::InvalidArgumentError(absl::StrCat("group_epoch: must be positive, not ", epoch));
  }
  if (epoch < epoch_) {
    return absl::FailedPreconditionError(
        absl::StrCat("group_epoch: epoch ", epoch, " is over, this worker is in epoch ", epoch_));
  }
  if (epoch == epoch_ && used_) {
    return absl::FailedPreconditionError(
        absl::StrCat("group_epoch: this worker is in epoch ", epoch, " and has served requests of it"));
  }
  if (epoch > epoch_) complete_ = false;
  epoch_ = epoch;
  used_ = false;
  return absl::OkStatus();
}

void EpochFence::Complete(int64_t epoch) {
  absl::MutexLock lock(&mu_);
  if (epoch == epoch_) complete_ = true;
}

absl::Status EpochFence::CheckLocked(int64_t epoch) const {
  if (epoch != epoch_ || epoch_ == 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("group_epoch: the request is of epoch ", epoch, ", this worker is in epoch ", epoch_));
  }
  if (!complete_) {
    return absl::FailedPreconditionError(absl::StrCat("group_epoch: the request is of epoch ", epoch,
                                                      ", this worker is in epoch ", epoch_,
                                                      ", whose Fence has not ended what came before it"));
  }
  return absl::OkStatus();
}

absl::Status EpochFence::Check(int64_t epoch) const {
  absl::MutexLock lock(&mu_);
  return CheckLocked(epoch);
}

absl::Status EpochFence::Admit(int64_t epoch) {
  absl::MutexLock lock(&mu_);
  absl::Status status = CheckLocked(epoch);
  if (status.ok()) used_ = true;
  return status;
}

absl::Status EpochFence::CheckShutdown(int64_t epoch) const {
  absl::MutexLock lock(&mu_);
  if (epoch >= epoch_) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("group_epoch: the request is of epoch ", epoch, ", this worker is in epoch ", epoch_));
}

int64_t EpochFence::epoch() const {
  absl::MutexLock lock(&mu_);
  return epoch_;
}

bool EpochFence::pending(int64_t epoch) const {
  absl::MutexLock lock(&mu_);
  return epoch == epoch_ && !complete_;
}

}  // namespace somnus
