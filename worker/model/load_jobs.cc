#include "worker/model/load_jobs.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "base/cpus.h"
#include "base/threads.h"

namespace somnus {
namespace {

constexpr int kMaxThreads = 16;

}  // namespace

void ProgressMeter::Add(int64_t bytes) {
  loaded_ += bytes;
  if (!report_ || !reporting_.try_lock())
    return;  // the thread that holds the lock or comes next reports
             // these bytes
  std::lock_guard<std::mutex> lock(reporting_, std::adopt_lock);
  const int64_t loaded = loaded_;
  if (loaded == reported_ || loaded == total_) return;  // only Finish reports the total
  reported_ = loaded;
  report_(loaded, total_);
}

void ProgressMeter::Finish() {
  if (report_) report_(total_, total_);
}

int NumLoadThreads() { return std::min(NumAllowedCpus(), kMaxThreads); }

absl::Status RunLoadJobs(size_t count, int num_threads,
                         absl::FunctionRef<absl::Status(size_t, std::vector<float>*)> job) {
  std::atomic<size_t> next{0};
  std::mutex mutex;
  absl::Status status;  // the first error
  const auto work = [&] {
    UnpinThisThread();
    std::vector<float> scratch;
    for (size_t i = next++; i < count; i = next++) {
      absl::Status result = job(i, &scratch);
      if (result.ok()) continue;
      next = count;
      std::lock_guard<std::mutex> lock(mutex);
      if (status.ok()) status = std::move(result);
      return;
    }
  };
  const int num_workers = std::min(num_threads, static_cast<int>(count));
  std::vector<std::thread> threads;
  for (int i = 0; i < num_workers; ++i) {
    absl::StatusOr<std::thread> thread = StartThread(work);
    if (!thread.ok() && threads.empty()) return thread.status();
    if (!thread.ok()) break;  // the threads that run do all jobs
    threads.push_back(*std::move(thread));
  }
  for (std::thread& thread : threads) thread.join();
  return status;
}

}  // namespace somnus
