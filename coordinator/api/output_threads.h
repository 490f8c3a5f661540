#pragma once
// The threads on which token ids become text and JSON. Their number is fixed, so that responses take no more
// CPUs than that from the engine; tasks wait in one queue, first in first out.
//
// Thread safety: all methods are thread safe; Stop is called from none of these threads. The queue is as long
// as there are open responses at most, since each posts one task at a time. Tasks must not throw.

#include <deque>
#include <functional>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace somnus {

// Half of the CPUs, 2 to 8: one slow response must never hold up all others.
int DefaultOutputThreads();

class OutputThreads {
 public:
  explicit OutputThreads(int num_threads);
  ~OutputThreads() { Stop(); }
  OutputThreads(const OutputThreads&) = delete;
  OutputThreads& operator=(const OutputThreads&) = delete;

  // After Stop the task is dropped.
  void Post(std::function<void()> task);
  // Waits for the tasks that run, drops those that wait. Idempotent.
  void Stop();

 private:
  void Run();

  absl::Mutex mutex_;
  absl::CondVar posted_;
  std::deque<std::function<void()>> tasks_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace somnus
