#include "worker/comm/epoch_communicator.h"

#include <limits>
#include <utility>

#include "base/check.h"
#include "base/status_macros.h"

namespace somnus {

void EpochCommunicator::SetShape(int rank, int world_size, bool on_gpu) {
  rank_ = number_ = rank;
  world_size_ = world_size;
  // As the group that Join brings: collectives among GPUs are queued, collectives of hosts are done at once.
  stream_ordered_ = on_gpu && world_size > 1;
}

void EpochCommunicator::BeginEpoch(int64_t epoch) {
  std::unique_ptr<Communicator> left;
  {
    absl::WriterMutexLock lock(&mu_);
    left = std::move(group_);
    epoch_ = epoch;
    absl::MutexLock reason_lock(&reason_mu_);
    abort_reason_.clear();
  }
  left.reset();  // outside of the lock: the destructor may wait a moment for the other ranks
}

absl::Status EpochCommunicator::Join(std::unique_ptr<Communicator> group) {
  SOMNUS_CHECK(group->rank() == rank_ && group->world_size() == world_size_ &&
               group->stream_ordered() == stream_ordered_);
  std::string reason;
  {
    absl::WriterMutexLock lock(&mu_);
    group_ = std::move(group);
    absl::MutexLock reason_lock(&reason_mu_);
    reason = abort_reason_;
  }
  if (reason.empty()) return absl::OkStatus();
  group_->Abort(reason);  // there was nothing to abort yet when that was asked for
  return absl::AbortedError(reason);
}

bool EpochCommunicator::aborted() const {
  absl::MutexLock lock(&reason_mu_);
  return !abort_reason_.empty();
}

void EpochCommunicator::AbortUpTo(int64_t epoch, const std::string& reason) {
  absl::ReaderMutexLock lock(&mu_);
  if (epoch_ > epoch) return;
  {
    absl::MutexLock reason_lock(&reason_mu_);
    if (abort_reason_.empty()) abort_reason_ = reason;
  }
  if (group_ != nullptr) group_->Abort(reason);
}

void EpochCommunicator::Abort(const std::string& reason) {
  AbortUpTo(std::numeric_limits<int64_t>::max(), reason);
}

absl::Status EpochCommunicator::status() const {
  absl::ReaderMutexLock lock(&mu_);
  return group_ == nullptr ? CheckJoined() : group_->status();
}

absl::Status EpochCommunicator::CheckJoined() const {
  if (group_ != nullptr) return absl::OkStatus();
  return absl::FailedPreconditionError("JoinGroup has not been called in this epoch");
}

absl::Status EpochCommunicator::AllReduceSum(void* data, int64_t count, DataType type) {
  RETURN_IF_ERROR(CheckJoined());
  return group_->AllReduceSum(data, count, type);
}

absl::Status EpochCommunicator::AllGather(const void* in, int64_t bytes, void* out) {
  RETURN_IF_ERROR(CheckJoined());
  return group_->AllGather(in, bytes, out);
}

absl::Status EpochCommunicator::AllReduceAddRmsNorm(Device& device, const TensorView& residual,
                                                    const TensorView& delta, const float* weight, double eps,
                                                    const TensorView& out) {
  RETURN_IF_ERROR(CheckJoined());
  return group_->AllReduceAddRmsNorm(device, residual, delta, weight, eps, out);
}

absl::Status EpochCommunicator::SendToNextStage(const void* data, int64_t bytes) {
  RETURN_IF_ERROR(CheckJoined());
  return group_->SendToNextStage(data, bytes);
}

absl::Status EpochCommunicator::ReceiveFromPreviousStage(void* data, int64_t bytes) {
  RETURN_IF_ERROR(CheckJoined());
  return group_->ReceiveFromPreviousStage(data, bytes);
}

absl::Status EpochCommunicator::Barrier() {
  RETURN_IF_ERROR(CheckJoined());
  return group_->Barrier();
}

absl::Status EpochCommunicator::Suspend() {
  RETURN_IF_ERROR(CheckJoined());
  return group_->Suspend();
}

absl::Status EpochCommunicator::Resume() {
  RETURN_IF_ERROR(CheckJoined());
  return group_->Resume();
}

}  // namespace somnus
