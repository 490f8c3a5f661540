#pragma once
// The threads that read weights, and the progress of reading.

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"

namespace somnus {

// Gets bytes_loaded and bytes_total. Called often, from any thread, but by one thread at a time.
using LoadProgress = std::function<void(int64_t, int64_t)>;

// Reports numbers that only grow and end with the total. Thread safe; a slow callback delays one thread.
class ProgressMeter {
 public:
  ProgressMeter(const LoadProgress& report, int64_t total) : report_(report), total_(total) {}

  void Add(int64_t bytes);
  // Reports the total: everything has arrived.
  void Finish();

 private:
  const LoadProgress& report_;
  const int64_t total_;
  std::atomic<int64_t> loaded_{0};
  std::mutex reporting_;
  int64_t reported_ = 0;  // under reporting_
};

// How many threads load weights: one for each allowed CPU, 16 at most.
int NumLoadThreads();

// Calls job(i, scratch) for each i of [0, count) in order, on `num_threads` threads, each with a scratch of
// its own. After an error no more jobs are begun; returns the first error.
absl::Status RunLoadJobs(size_t count, int num_threads,
                         absl::FunctionRef<absl::Status(size_t, std::vector<float>*)> job);

}  // namespace somnus
