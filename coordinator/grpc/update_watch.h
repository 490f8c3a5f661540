#pragma once
// Watches the client of an update while the update waits for the client, and cancels the call when the client
// is too slow, or does not notice that the update has failed. Internal to coordinator/grpc. Thread safe.

#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "base/monotonic.h"
#include "coordinator/grpc/update_weights_call.h"

namespace somnus {

class UpdateWatch {
 public:
  // ResourceExhausted: no thread is to be had. `cancel` ends a read that waits for the client.
  static absl::StatusOr<std::unique_ptr<UpdateWatch>> Start(const UpdatePace& pace,
                                                            std::function<void()> cancel);
  ~UpdateWatch();
  UpdateWatch(const UpdateWatch&) = delete;

  // Whether the update waits for its client from now on.
  void SetWaits(bool waits);
  // The client has sent so many bytes of tensors, on the whole.
  void NoteBytes(int64_t total);
  // The first message has come; `status`, which is called while the update waits for its client and must not
  // block, says from now on how the update goes.
  void NoteBegin();
  void SetUpdate(std::function<absl::Status()> status);
  // Why the call was cancelled; ok: the call was not cancelled.
  absl::Status reason() const;

 private:
  UpdateWatch(const UpdatePace& pace, std::function<void()> cancel)
      : pace_(pace), cancel_(std::move(cancel)) {}
  void Run();
  absl::Status Look() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const UpdatePace pace_;
  const std::function<void()> cancel_;
  mutable absl::Mutex mu_;
  std::function<absl::Status()> status_ ABSL_GUARDED_BY(mu_);
  MonotonicTime silent_since_ ABSL_GUARDED_BY(mu_) = absl::InfiniteDuration();
  MonotonicTime ended_at_ ABSL_GUARDED_BY(mu_) = absl::InfiniteDuration();
  absl::Duration waited_ ABSL_GUARDED_BY(mu_);  // for the client, before silent_since_
  bool begun_ ABSL_GUARDED_BY(mu_) = false;
  int64_t num_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  absl::Status reason_ ABSL_GUARDED_BY(mu_);
  StopSignal stop_;
  std::thread thread_;
};

}  // namespace somnus
