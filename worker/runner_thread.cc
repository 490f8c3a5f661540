#include "worker/runner_thread.h"

#include <utility>

#include "absl/synchronization/notification.h"
#include "base/monotonic.h"

namespace somnus {

RunnerThread::RunnerThread() : thread_([this] { Loop(); }) {}

RunnerThread::~RunnerThread() {
  {
    absl::MutexLock lock(&mu_);
    stop_ = true;
  }
  thread_.join();
}

void RunnerThread::Post(std::function<void()> task) {
  absl::MutexLock lock(&mu_);
  tasks_.push(std::move(task));
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

void RunnerThread::Loop() {
  absl::MutexLock lock(&mu_);
  while (true) {
    const auto ready = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return !tasks_.empty() || stop_; };
    mu_.Await(absl::Condition(&ready));
    if (tasks_.empty()) return;
    std::function<void()> task = std::move(tasks_.front());
    tasks_.pop();
    mu_.Unlock();
    task();
    task = nullptr;  // what it holds is destroyed without the lock
    mu_.Lock();
  }
}

}  // namespace somnus
