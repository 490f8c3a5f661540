#pragma once
// The threads that turn token ids into text and JSON. The number of threads is fixed, so that responses take
// at most that many CPUs from the engine; tasks wait in one queue, first in first out.
//
// Thread safety: all methods are thread safe; Stop must not be called from an output thread. The queue has at
// most one task per open response, since each response posts one task at a time. Tasks must not throw.

#include <deque>
#include <functional>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace somnus {

// Half of the CPUs, from 2 to 8: at least two, so that one slow response does not hold up all other
// responses.
int DefaultOutputThreads();

class OutputThreads {
 public:
  explicit OutputThreads(int num_threads);
  ~OutputThreads() { Stop(); }
  OutputThreads(const OutputThreads&) = delete;
  OutputThreads& operator=(const OutputThreads&) = delete;

  // Queues a task; drops the task after Stop.
  void Post(std::function<void()> task);
  // Waits for tasks that run, and drops tasks that wait. Idempotent.
  void Stop();

 private:
  void Run();
  void AwaitTask() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  absl::Mutex mutex_;
  absl::CondVar posted_;
  std::deque<std::function<void()>> tasks_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace somnus
