#include "worker/mask_inbox.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace somnus {

absl::Status MaskInbox::Put(int64_t group_epoch, v1::StepMasks masks) {
  absl::MutexLock lock(&mu_);
  if (group_epoch <= ended_)
    return absl::FailedPreconditionError(absl::StrCat("masks: epoch ", group_epoch, " is over: ", reason_));
  if (group_epoch != epoch_) waiting_.clear();
  epoch_ = group_epoch;
  if (!waiting_.empty() && waiting_.back().step_id() == masks.step_id() && waiting_.back().has_more()) {
    waiting_.back().set_has_more(masks.has_more());
    for (v1::SlotMask& mask : *masks.mutable_masks()) waiting_.back().add_masks()->Swap(&mask);
    return absl::OkStatus();
  }
  if (waiting_.size() >= kMostSteps) {
    return absl::ResourceExhaustedError(
        absl::StrCat("masks: the masks of ", kMostSteps, " steps wait already"));
  }
  waiting_.push_back(std::move(masks));
  return absl::OkStatus();
}

absl::StatusOr<v1::StepMasks> MaskInbox::AwaitMasks(int64_t group_epoch, int64_t step_id) {
  absl::MutexLock lock(&mu_);
  const auto find = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return epoch_ != group_epoch
               ? waiting_.end()
               : std::find_if(waiting_.begin(), waiting_.end(), [&](const v1::StepMasks& one) {
                   return one.step_id() == step_id && !one.has_more();
                 });
  };
  const auto ends = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return ended_ >= group_epoch || find() != waiting_.end();
  };
  mu_.Await(absl::Condition(&ends));
  if (ended_ >= group_epoch) return absl::AbortedError(reason_);
  const auto found = find();
  v1::StepMasks masks = std::move(*found);
  waiting_.erase(waiting_.begin(), found + 1);  // older masks belong to steps that failed before they sampled
  return masks;
}

void MaskInbox::EndUpTo(int64_t epoch, const std::string& reason) {
  absl::MutexLock lock(&mu_);
  if (epoch <= ended_) return;
  ended_ = epoch;
  reason_ = reason;
  if (epoch_ <= epoch) waiting_.clear();
}

void MaskInbox::BeginEpoch(int64_t epoch) {
  absl::MutexLock lock(&mu_);
  if (epoch_ < epoch) waiting_.clear();
  ended_ = epoch - 1;
  reason_ = absl::StrCat("epoch ", epoch, " has begun");
}

}  // namespace somnus
