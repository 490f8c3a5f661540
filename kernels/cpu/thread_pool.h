#pragma once
// A fork-join pool. The caller is thread 0; helpers spin between the ops of a step and block outside it.

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

namespace somnus::cpu {

// Used by one thread at a time, the one that calls Run, BeginStep and EndStep.
class ThreadPool {
 public:
  // Starts num_threads - 1 helpers. pin_cpus: empty, or the CPU of each thread (the caller's is pinned by
  // BeginStep).
  ThreadPool(int num_threads, std::vector<int> pin_cpus, bool spin);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const { return num_threads_; }

  // Calls fn(thread) once for every thread in [0, num_threads), on that thread, and returns when all have
  // returned.
  template <typename Fn>
  void Run(const Fn& fn) {
    if (num_threads_ == 1) {
      fn(0);
      return;
    }
    RunErased([](const void* context, int thread) { (*static_cast<const Fn*>(context))(thread); }, &fn);
  }

  // Between these the helpers stay awake: a Run costs about one exchange of a cache line.
  void BeginStep();
  void EndStep();

 private:
  using Task = void (*)(const void* context, int thread);

  void RunErased(Task task, const void* context);
  void HelperLoop(int thread);
  uint32_t AwaitEpoch(uint32_t seen);
  void Block(uint32_t seen);
  void WakeSleepers();
  void Join();

  const int num_threads_;
  const std::vector<int> pin_cpus_;
  const bool spin_;
  std::thread::id pinned_caller_;

  // Written by the caller before epoch_ moves on, read by helpers after.
  Task task_ = nullptr;
  const void* context_ = nullptr;

  alignas(128) std::atomic<uint32_t> epoch_{0};  // one per Run
  std::atomic<bool> stop_{false};
  std::atomic<bool> in_step_{false};
  alignas(128) std::atomic<uint32_t> sleepers_{0};
  std::atomic<uint32_t> wake_{0};                  // futex word: helpers sleep until it changes
  alignas(128) std::atomic<uint32_t> pending_{0};  // helpers that have not finished the current Run
  std::atomic<bool> caller_blocked_{false};

  std::vector<std::thread> helpers_;
};

// The part [begin, end) of `total` items that `thread` of `num_threads` takes: contiguous, sizes differ by at
// most one.
struct Range {
  int64_t begin;
  int64_t end;
};
inline Range PartOf(int64_t total, int thread, int num_threads) {
  return {total * thread / num_threads, total * (thread + 1) / num_threads};
}

}  // namespace somnus::cpu
