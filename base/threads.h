#pragma once
// Threads that may be unavailable: where a process or its cgroup is at its limit of threads, std::thread
// throws, which would end the process. Thread safe.

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"

namespace somnus {

// ResourceExhausted: no thread is available, and nothing runs.
absl::StatusOr<std::thread> StartThread(std::function<void()> body);

// Runs work(0) to work(count - 1) at once, and returns when all calls have returned. Calls for which no
// thread is available run on the caller's thread, in order.
void RunTogether(size_t count, const std::function<void(size_t)>& work);

// Runs tasks on as many threads as the tasks need at once, and at most on `most`; further tasks wait for
// their turn. Threads stay for later tasks.
class TaskThreads {
 public:
  explicit TaskThreads(size_t most) : most_(most) {}
  ~TaskThreads() { Join(); }
  TaskThreads(const TaskThreads&) = delete;

  // ResourceExhausted: all threads are busy and no further thread is available; the task does not run.
  absl::Status Run(std::function<void()> task);
  // Runs work(0) to work(count - 1), each once, on the caller's thread and on at most `num_helpers` threads
  // of this object, and returns when all calls have returned. `work` must be thread safe. Helpers that are
  // busy with tasks come late: the caller does not wait for a helper that has not begun.
  void ForEach(size_t count, size_t num_helpers, const std::function<void(size_t)>& work);
  // Returns once every task has ended. No task may be added afterwards.
  void Join();

 private:
  void Work();

  const size_t most_;
  std::mutex mu_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
  std::vector<std::thread> threads_;
  size_t num_idle_ = 0;
  bool ends_ = false;
};

}  // namespace somnus
