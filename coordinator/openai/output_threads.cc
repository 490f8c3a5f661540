#include "coordinator/openai/output_threads.h"

#include <algorithm>
#include <utility>

#include "base/cpus.h"
#include "base/heartbeat.h"

namespace somnus {

int DefaultOutputThreads() { return std::clamp(NumAllowedCpus() / 2, 2, 8); }

OutputThreads::OutputThreads(int num_threads) {
  for (int i = 0; i < num_threads; ++i) threads_.emplace_back([this] { Run(); });
}

void OutputThreads::Post(std::function<void()> task) {
  absl::MutexLock lock(&mutex_);
  if (stopping_) return;
  tasks_.push_back(std::move(task));
  posted_.Signal();
}

void OutputThreads::Stop() {
  std::deque<std::function<void()>> dropped;
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    dropped.swap(tasks_);
    posted_.SignalAll();
  }
  dropped.clear();  // without the lock: a task's destructor may post a task
  for (std::thread& thread : threads_) {
    if (thread.joinable()) thread.join();
  }
}

void OutputThreads::AwaitTask() {
  const Heartbeat::Wait wait(absl::InfiniteDuration());
  while (tasks_.empty() && !stopping_) posted_.Wait(&mutex_);
}

void OutputThreads::Run() {
  const Heartbeat heartbeat("", "output threads", this);
  absl::MutexLock lock(&mutex_);
  for (;;) {
    if (tasks_.empty()) AwaitTask();
    if (stopping_) return;
    std::function<void()> task = std::move(tasks_.front());
    tasks_.pop_front();
    mutex_.Unlock();
    heartbeat.Beat();
    task();
    task = nullptr;
    mutex_.Lock();
  }
}

}  // namespace somnus
