#pragma once
// Threads for calls of engines that block: each piece of work has a thread of its own while the work lasts.
//
// Owns the threads. Thread safe. Invariant: `on_end` is called after each piece of work, on its thread,
// without a lock.

#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace somnus {

class CarrierThreads {
 public:
  explicit CarrierThreads(std::function<void()> on_end) : on_end_(std::move(on_end)) {}
  ~CarrierThreads() { Join(); }

  // Runs `work` on a thread of its own. False: no thread could be started, which is logged, and nothing runs.
  bool Carry(std::function<void()> work);
  // Frees the threads whose work has ended.
  void JoinEnded();
  // Returns once all work has ended. No work may be added meanwhile.
  void Join();

 private:
  struct Carrier {
    std::thread thread;
    bool has_ended = false;
  };

  const std::function<void()> on_end_;
  absl::Mutex mu_;
  std::vector<std::unique_ptr<Carrier>> carriers_ ABSL_GUARDED_BY(mu_);
};

}  // namespace somnus
