#pragma once
// A fork-join pool. The caller is thread 0; helpers spin between the ops of a step and block outside steps.

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

namespace somnus::cpu {

// Used by one thread at a time, which calls Run, BeginStep and EndStep.
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

  // Between BeginStep and EndStep the helpers stay awake: a Run costs about one exchange of a cache line.
  void BeginStep();
  void EndStep();
  // Undoes BeginStep's pin of the caller, which the next BeginStep makes again.
  void UnpinCaller();

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

// Items [begin, end).
struct Range {
  int64_t begin;
  int64_t end;
};

// The cut of an op's items among threads: contiguous parts in the order of the threads, in proportion to
// their speeds. The same number of items is always cut in the same way, so that a thread finds data of
// earlier ops in its caches. Immutable.
class Partition {
 public:
  // Threads that are alike: the sizes of the parts differ by at most 1.
  explicit Partition(int num_threads) : num_threads_(num_threads) {}
  // One thread for each speed, in any unit. All speeds are finite and above 0.
  explicit Partition(const std::vector<double>& speeds);

  int num_threads() const { return num_threads_; }
  // `total` is below 2^43.
  Range PartOf(int64_t total, int thread) const {
    return {BeginOf(total, thread), BeginOf(total, thread + 1)};
  }
  // The thread whose part of [0, total) has `item`.
  int OwnerOf(int64_t item, int64_t total) const {
    if (ends_.empty()) return static_cast<int>(((item + 1) * num_threads_ - 1) / total);
    return OwnerBySpeed(item, total);
  }

 private:
  static constexpr int64_t kWhole = 1 << 20;

  int64_t BeginOf(int64_t total, int thread) const {
    if (ends_.empty()) return total * thread / num_threads_;
    return thread == 0 ? 0 : total * ends_[thread - 1] / kWhole;
  }
  int OwnerBySpeed(int64_t item, int64_t total) const;

  const int num_threads_;
  std::vector<int64_t> ends_;  // of the threads' parts of kWhole; none: all are alike
};

// A partition in pieces. A thread takes the pieces of its own part first, in order, and then pieces that the
// next few threads have not taken yet. So the threads end together even if a thread is held up: a CPU may do
// something else, or share a core with another virtual machine.
class Pieces {
 public:
  explicit Pieces(int num_threads) : parts_(static_cast<size_t>(num_threads)) {}

  // No thread may be in Take. pieces_of_part: at most, at least 1.
  void Reset(const Partition& partition, int64_t total, int64_t pieces_of_part) {
    for (size_t t = 0; t < parts_.size(); ++t) {
      const Range part = partition.PartOf(total, static_cast<int>(t));
      parts_[t].next.store(part.begin, std::memory_order_relaxed);
      parts_[t].end = part.end;
      parts_[t].size = std::max<int64_t>(1, (part.end - part.begin + pieces_of_part - 1) / pieces_of_part);
    }
  }
  // An empty range: the thread has no more to do.
  Range Take(int thread) {
    for (size_t i = 0; i < std::min(parts_.size(), kPartsOfThread); ++i) {
      Part& part = parts_[(static_cast<size_t>(thread) + i) % parts_.size()];
      if (part.next.load(std::memory_order_relaxed) >= part.end) continue;
      const int64_t begin = part.next.fetch_add(part.size, std::memory_order_relaxed);
      if (begin < part.end) return {begin, std::min(begin + part.size, part.end)};
    }
    return {0, 0};
  }

 private:
  // The thread's own part and the parts that the thread helps with: to look at a part is to wait for a cache
  // line of another core.
  static constexpr size_t kPartsOfThread = 8;

  struct alignas(128) Part {
    std::atomic<int64_t> next{0};
    int64_t end = 0;
    int64_t size = 1;  // of a piece
  };
  std::vector<Part> parts_;
};

}  // namespace somnus::cpu
