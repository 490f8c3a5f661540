#pragma once
// Threads that may not be had: where a process or its cgroup is at its limit of threads, std::thread throws,
// which would end the process. Thread safe.

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"

namespace somnus {

// ResourceExhausted: there is none to be had, and nothing runs.
absl::StatusOr<std::thread> StartThread(std::function<void()> body);

// Runs work(0) to work(count - 1) at once, and returns when all have returned. What gets no thread of its own
// runs on the caller's, one after the other.
void RunTogether(size_t count, const std::function<void(size_t)>& work);

// Runs tasks on as many threads as they need at once, and at most on `most`; others wait for their turn.
// Threads stay for later tasks.
class TaskThreads {
 public:
  explicit TaskThreads(size_t most) : most_(most) {}
  ~TaskThreads() { Join(); }
  TaskThreads(const TaskThreads&) = delete;

  // ResourceExhausted, and the task does not run: all threads are busy, and no other one is to be had.
  absl::Status Run(std::function<void()> task);
  // Returns once every task has ended. None may come afterwards.
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
