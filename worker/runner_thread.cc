#include "worker/runner_thread.h"

#include <memory>
#include <utility>

#include "absl/synchronization/notification.h"
#include "base/monotonic.h"

namespace somnus {

RunnerThread::RunnerThread(Heartbeats* heartbeats) : thread_([this, heartbeats] { Loop(heartbeats); }) {}

RunnerThread::~RunnerThread() {
  {
    const std::lock_guard<std::mutex> lock(mu_);
    stop_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

void RunnerThread::Post(std::function<void()> task, absl::Duration bound) {
  {
    const std::lock_guard<std::mutex> lock(mu_);
    tasks_.push({std::move(task), bound});
  }
  changed_.notify_one();
}

void RunnerThread::Run(const std::function<void()>& task) {
  absl::Notification done;
  Post([&] {
    task();
    done.Notify();
  });
  done.WaitForNotification();
}

bool RunnerThread::WaitIdle(absl::Duration timeout) {
  const auto reached = std::make_shared<StopSignal>();  // shared: the task may run after the timeout
  Post([reached] { reached->Stop(); });
  return reached->WaitFor(timeout);
}

void RunnerThread::Loop(Heartbeats* heartbeats) {
  const Heartbeat heartbeat("", "runner thread", nullptr, heartbeats);
  std::unique_lock<std::mutex> lock(mu_);
  while (true) {
    WaitBeating(&changed_, &lock, absl::InfiniteDuration(), [this] { return !tasks_.empty() || stop_; });
    if (tasks_.empty() && !stop_) continue;
    if (tasks_.empty()) return;
    Task task = std::move(tasks_.front());
    tasks_.pop();
    lock.unlock();
    {
      const Heartbeat::Wait wait(task.bound);
      task.run();
      task.run = nullptr;  // what it holds is destroyed without the lock
    }
    lock.lock();
  }
}

}  // namespace somnus
