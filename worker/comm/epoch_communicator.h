#pragma once
// The Communicator of a worker for life: forwards to the group of the current epoch. Between a BeginEpoch and
// the Join that follows there is no group, and collectives return FailedPrecondition.
//
// Used by the runner thread alone, except Abort, AbortUpTo, aborted and status, which may be called from any
// thread.
// Owns the group, which is made and destroyed on the runner thread, because a group on GPUs needs the device
// that is current there.

#include <cstdint>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "worker/comm/communicator.h"

namespace somnus {

class EpochCommunicator : public Communicator {
 public:
  // Sets all that does not change from epoch to epoch. `on_gpu`: the rank's device is a GPU. To be called
  // once, before anybody uses the communicator.
  void SetShape(int rank, int world_size, bool on_gpu);
  // The rank among all stages of a pipeline, for messages. To be called after SetShape, which sets the rank.
  void SetNumber(int number) { number_ = number; }
  int number() const { return number_; }
  // Leaves the group of an older epoch, if there is such a group. An abort of that epoch has no further
  // effect.
  void BeginEpoch(int64_t epoch);
  // From now on `group` is the epoch's. Aborted, for all ranks of the group, when the epoch was aborted
  // meanwhile.
  absl::Status Join(std::unique_ptr<Communicator> group);
  bool joined() const { return group_ != nullptr; }

  // True once the epoch was aborted.
  bool aborted() const;
  // Aborts the group when the group's epoch is `epoch` or older; a group that still forms, as soon as it has
  // formed.
  void AbortUpTo(int64_t epoch, const std::string& reason);

  int rank() const override { return rank_; }
  int world_size() const override { return world_size_; }
  bool stream_ordered() const override { return stream_ordered_; }
  absl::Status AllReduceSum(void* data, int64_t count, DataType type) override;
  absl::Status AllGather(const void* in, int64_t bytes, void* out) override;
  absl::Status AllReduceAddRmsNorm(Device& device, const TensorView& residual, const TensorView& delta,
                                   const float* weight, double eps, const TensorView& out) override;
  absl::Status SendToNextStage(const void* data, int64_t bytes) override;
  absl::Status ReceiveFromPreviousStage(void* data, int64_t bytes) override;
  bool sends_on_stream() const override { return group_ != nullptr && group_->sends_on_stream(); }
  bool receives_on_stream() const override { return group_ != nullptr && group_->receives_on_stream(); }
  absl::Status Barrier() override;
  void Abort(const std::string& reason) override;
  absl::Status status() const override;
  absl::Status Suspend() override;
  absl::Status Resume() override;

 private:
  absl::Status CheckJoined() const;

  int rank_ = 0;
  int world_size_ = 1;
  int number_ = 0;
  bool stream_ordered_ = false;

  // Keeps group_ alive while a second thread uses the group. Only the runner thread changes group_ and
  // epoch_, locking for writing; the runner thread reads group_ without the lock, and never waits for the
  // lock within a collective, so an abort that holds the lock for reading can wait for a collective to end.
  mutable absl::Mutex mu_;
  std::unique_ptr<Communicator> group_;
  int64_t epoch_ ABSL_GUARDED_BY(mu_) = 0;
  mutable absl::Mutex reason_mu_ ABSL_ACQUIRED_AFTER(mu_);
  std::string abort_reason_ ABSL_GUARDED_BY(reason_mu_);  // empty: the epoch was not aborted
};

}  // namespace somnus
