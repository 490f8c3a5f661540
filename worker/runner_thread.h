#pragma once
// The one thread that owns the device: every use of model, device and communicator runs on it, in order.

#include <functional>
#include <queue>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace somnus {

// Any thread but the runner thread may call Post and Run. The queue has no bound of its own; there is one
// task for each lifecycle call under way and for each step that worker_service.cc lets in.
class RunnerThread {
 public:
  RunnerThread();
  // Runs the tasks that are still queued first.
  ~RunnerThread();

  void Post(std::function<void()> task);
  // Returns when the task has run.
  void Run(const std::function<void()>& task);
  // False when tasks that were queued before the call still run after `timeout`.
  bool WaitIdle(absl::Duration timeout);

 private:
  void Loop();

  absl::Mutex mu_;
  std::queue<std::function<void()>> tasks_ ABSL_GUARDED_BY(mu_);
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

}  // namespace somnus
