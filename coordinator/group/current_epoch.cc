#include "coordinator/group/current_epoch.h"

#include "base/status_macros.h"

namespace somnus {

absl::Status CurrentEpoch::Interruption() const {
  absl::MutexLock lock(&mu_);
  return interruption_;
}

void CurrentEpoch::Interrupt(const absl::Status& reason) {
  {
    absl::MutexLock lock(&mu_);
    if (interruption_.ok()) interruption_ = reason;
  }
  stop_.Stop();
}

absl::Status CurrentEpoch::Set(std::shared_ptr<GroupEpoch> epoch) {
  std::shared_ptr<GroupEpoch> last;  // ends without the lock
  absl::MutexLock lock(&mu_);
  RETURN_IF_ERROR(interruption_);
  last = std::exchange(epoch_, std::move(epoch));
  return absl::OkStatus();
}

std::shared_ptr<GroupEpoch> CurrentEpoch::Get() const {
  absl::MutexLock lock(&mu_);
  return epoch_;
}

std::shared_ptr<GroupEpoch> CurrentEpoch::Take() {
  absl::MutexLock lock(&mu_);
  return std::exchange(epoch_, nullptr);
}

void CurrentEpoch::ReportLoss(const absl::Status& reason) {
  std::shared_ptr<GroupEpoch> epoch;
  {
    absl::MutexLock lock(&mu_);
    if (fencing_ != nullptr) fencing_->Fail(reason);
    epoch = epoch_;
  }
  if (epoch != nullptr) epoch->ReportLoss(reason);
}

absl::Status CurrentEpoch::BeginFence(FailureLatch* latch) {
  absl::MutexLock lock(&mu_);
  RETURN_IF_ERROR(interruption_);
  fencing_ = latch;
  return absl::OkStatus();
}

absl::Status CurrentEpoch::EndFence() {
  absl::MutexLock lock(&mu_);
  fencing_ = nullptr;
  return interruption_;
}

}  // namespace somnus
