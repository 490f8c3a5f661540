#pragma once
// A client request's outputs on the way from the engine's thread to the thread that turns outputs into text.
//
// Thread safe. Push calls `on_ready`, on the engine's thread, when there is something to take after there was
// nothing. Bounded in bytes: an output that is pushed while more than `max_bytes` wait is dropped, unless it
// ends a sequence, and overflowed() turns true for good.

#include <cstdint>
#include <functional>
#include <string>
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

  struct Queued {
    int32_t index = 0;  // of the choice
    RequestOutput output;
    // The name of the weights that computed the tokens (weight_labels.h), as of the step; empty: nobody asks.
    std::string weights_name;
  };
  using Outputs = std::vector<Queued>;

  void Push(Queued output);
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
