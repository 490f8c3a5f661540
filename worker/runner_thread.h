#pragma once
// The one thread that owns the device: every use of model, device and communicator runs on the thread, in
// order. The thread gives signs of life (base/heartbeat.h): while it waits for a task, and at both ends of a
// task, which may take up to a bound.

#include <condition_variable>
#include <functional>
#include <mutex>
#include <queue>
#include <thread>

#include "absl/time/time.h"
#include "base/heartbeat.h"

namespace somnus {

// Any thread but the runner thread may call Post and Run. The queue has no bound of its own; there is one
// task for each lifecycle call under way and for each step that worker_service.cc lets in.
class RunnerThread {
 public:
  // No coordinator waits for longer: the deadline of a call that reads a checkpoint.
  static constexpr absl::Duration kLongestCall = absl::Hours(2);

  explicit RunnerThread(Heartbeats* heartbeats = &Heartbeats::OfProcess());
  // Runs the tasks that are still queued first.
  ~RunnerThread();

  // `bound`: a task that takes longer hangs.
  void Post(std::function<void()> task, absl::Duration bound = kLongestCall);
  // Returns when the task has run.
  void Run(const std::function<void()>& task);
  // False when tasks that were queued before the call still run after `timeout`.
  bool WaitIdle(absl::Duration timeout);

 private:
  struct Task {
    std::function<void()> run;
    absl::Duration bound;
  };

  void Loop(Heartbeats* heartbeats);

  std::mutex mu_;  // not absl::Mutex, whose timeouts end by wall time (base/monotonic.h)
  std::condition_variable changed_;
  // Under mu_.
  std::queue<Task> tasks_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace somnus
