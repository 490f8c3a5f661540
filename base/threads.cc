#include "base/threads.h"

#include <algorithm>
#include <memory>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"

namespace somnus {

absl::StatusOr<std::thread> StartThread(std::function<void()> body) {
  try {
    return std::thread(std::move(body));
  } catch (const std::system_error& error) {
    return absl::ResourceExhaustedError(
        absl::StrCat("no thread can be started (", error.code().message(),
                     "): the limit of processes and threads is reached (ulimit -u, pids.max of the cgroup)"));
  }
}

void RunTogether(size_t count, const std::function<void(size_t)>& work) {
  std::vector<std::thread> threads;
  std::vector<size_t> here;
  for (size_t i = 1; i < count; ++i) {
    absl::StatusOr<std::thread> thread = StartThread([&work, i] { work(i); });
    if (thread.ok()) {
      threads.push_back(*std::move(thread));
    } else {
      here.push_back(i);
    }
  }
  if (count > 0) work(0);
  for (const size_t i : here) work(i);
  for (std::thread& thread : threads) thread.join();
}

absl::Status TaskThreads::Run(std::function<void()> task) {
  const std::lock_guard<std::mutex> lock(mu_);
  tasks_.push_back(std::move(task));
  if (tasks_.size() > num_idle_ && threads_.size() < most_) {
    absl::StatusOr<std::thread> thread = StartThread([this] { Work(); });
    if (thread.ok()) {
      threads_.push_back(*std::move(thread));
    } else if (num_idle_ == 0) {
      tasks_.pop_back();
      return thread.status();
    }
  }
  changed_.notify_one();
  return absl::OkStatus();
}

void TaskThreads::ForEach(size_t count, size_t num_helpers, const std::function<void(size_t)>& work) {
  // Outlives this call, for helpers that begin when everything is done.
  struct Share {
    std::mutex mu;
    std::condition_variable ended;
    size_t next = 0, num_running = 0;
  };
  const auto share = std::make_shared<Share>();
  const auto take = [share, count, &work] {
    std::unique_lock<std::mutex> lock(share->mu);
    while (share->next < count) {
      const size_t i = share->next++;
      ++share->num_running;
      lock.unlock();
      work(i);
      lock.lock();
      --share->num_running;
    }
    share->ended.notify_all();
  };
  for (size_t i = 0; i < std::min(num_helpers, most_); ++i) {
    if (!Run(take).ok()) break;
  }
  take();
  std::unique_lock<std::mutex> lock(share->mu);
  share->ended.wait(lock, [&] { return share->num_running == 0; });
}

void TaskThreads::Join() {
  std::vector<std::thread> threads;
  {
    const std::lock_guard<std::mutex> lock(mu_);
    ends_ = true;
    threads.swap(threads_);
  }
  changed_.notify_all();
  for (std::thread& thread : threads) thread.join();
}

void TaskThreads::Work() {
  std::unique_lock<std::mutex> lock(mu_);
  while (true) {
    ++num_idle_;
    changed_.wait(lock, [this] { return ends_ || !tasks_.empty(); });
    --num_idle_;
    if (tasks_.empty()) return;
    {
      const std::function<void()> task = std::move(tasks_.front());
      tasks_.pop_front();
      lock.unlock();
      task();
    }
    lock.lock();
  }
}

}  // namespace somnus
