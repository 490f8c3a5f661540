#pragma once
// A client request's outputs on the way from the engine's thread to the thread that turns outputs into text.
//
// Thread safe. Push calls `on_ready`, on the engine's thread, when there is something to take after there was
// nothing. Bounded in bytes: an output that is pushed while more than `max_bytes` wait is dropped, unless it
// ends a sequence, and overflowed() turns true for good.

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "coordinator/request/request.h"

namespace somnus {

class OutputQueue {
 public:
  OutputQueue(int64_t max_bytes, std::function<void()> on_ready)
      : max_bytes_(max_bytes), on_ready_(std::move(on_ready)) {}

  using Outputs = std::vector<std::pair<int32_t, RequestOutput>>;  // with the index of the choice

  void Push(int32_t index, RequestOutput output);
  // A caller that takes an output takes all outputs.
  void PushAll(Outputs outputs);
  Outputs TakeAll();
  bool overflowed() const;

 private:
  const int64_t max_bytes_;
  const std::function<void()> on_ready_;
  mutable absl::Mutex mutex_;
  Outputs outputs_ ABSL_GUARDED_BY(mutex_);
  int64_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  bool signalled_ ABSL_GUARDED_BY(mutex_) = false;
  bool overflowed_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace somnus
