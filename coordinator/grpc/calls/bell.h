#pragma once
// Wakes the thread of a gRPC call that waits for the engine's outputs. Internal to coordinator/grpc.

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace somnus {

// The engine shares the bell, and may ring after the call has ended. Thread safe.
class Bell {
 public:
  void Ring() {
    absl::MutexLock lock(&mutex_);
    rung_ = true;
  }
  // Returns once the bell has been rung, or after a while: the client may have left.
  void Wait() {
    const absl::Duration kCancelPoll = absl::Milliseconds(20);
    absl::MutexLock lock(&mutex_);
    mutex_.AwaitWithTimeout(absl::Condition(&rung_), kCancelPoll);
    rung_ = false;
  }

 private:
  absl::Mutex mutex_;
  bool rung_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace somnus
