#include "kernels/cpu/thread_pool.h"

#include <pthread.h>
#include <sched.h>

#include <utility>

#include "base/cpus.h"

namespace somnus::cpu {
namespace {

// About 30 us of pauses (an estimate; processors differ): longer than the gap between two ops. Then
// sched_yield lets other threads of this CPU run.
constexpr int kPauses = 1000;
constexpr int kYields = 200;

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// Waits for `done` by pauses, then by yields; returns false when both are used up.
template <typename Done>
bool SpinUntil(const Done& done) {
  for (int i = 0; i < kPauses; ++i) {
    if (done()) return true;
    Pause();
  }
  for (int i = 0; i < kYields; ++i) {
    if (done()) return true;
    sched_yield();
  }
  return done();
}

}  // namespace

ThreadPool::ThreadPool(int num_threads, std::vector<int> pin_cpus, bool spin)
    : num_threads_(num_threads), pin_cpus_(std::move(pin_cpus)), spin_(spin) {
  for (int t = 1; t < num_threads_; ++t) helpers_.emplace_back([this, t] { HelperLoop(t); });
}

ThreadPool::~ThreadPool() {
  stop_.store(true);
  in_step_.store(false);
  epoch_.fetch_add(1);
  wake_.fetch_add(1);
  wake_.notify_all();
  for (std::thread& helper : helpers_) helper.join();
}

void ThreadPool::BeginStep() {
  if (!pin_cpus_.empty() && pinned_caller_ != std::this_thread::get_id()) {
    pinned_caller_ = std::this_thread::get_id();
    PinThisThread({pin_cpus_[0]});
  }
  if (num_threads_ == 1) return;
  in_step_.store(true);
  if (spin_) WakeSleepers();
}

void ThreadPool::EndStep() { in_step_.store(false); }

void ThreadPool::WakeSleepers() {
  if (sleepers_.load() == 0) return;
  wake_.fetch_add(1);
  wake_.notify_all();
}

void ThreadPool::RunErased(Task task, const void* context) {
  task_ = task;
  context_ = context;
  pending_.store(static_cast<uint32_t>(num_threads_ - 1), std::memory_order_relaxed);
  // Sequentially consistent with sleepers_: a helper either sees this or is seen asleep.
  epoch_.fetch_add(1);
  WakeSleepers();
  task(context, 0);
  Join();
}

void ThreadPool::Join() {
  const auto done = [this] { return pending_.load(std::memory_order_acquire) == 0; };
  if (done() || (spin_ && SpinUntil(done))) return;
  caller_blocked_.store(true);
  for (uint32_t left = pending_.load(); left != 0; left = pending_.load()) pending_.wait(left);
  caller_blocked_.store(false);
}

void ThreadPool::Block(uint32_t seen) {
  sleepers_.fetch_add(1);
  const uint32_t wake = wake_.load();
  // A Run or a destructor that came before the fetch_add did not see this sleeper.
  if (epoch_.load() == seen) wake_.wait(wake);
  sleepers_.fetch_sub(1);
}

uint32_t ThreadPool::AwaitEpoch(uint32_t seen) {
  const auto moved = [this, seen] { return epoch_.load(std::memory_order_acquire) != seen; };
  while (!moved()) {
    if (spin_ && in_step_.load(std::memory_order_relaxed)) {
      if (SpinUntil([&] { return moved() || !in_step_.load(std::memory_order_relaxed); })) continue;
    }
    Block(seen);  // Outside a step, or while the step waits long for something.
  }
  return seen + 1;  // Runs do not overlap, so the epoch moves by one at a time.
}

void ThreadPool::HelperLoop(int thread) {
  if (!pin_cpus_.empty()) PinThisThread({pin_cpus_[thread]});
  uint32_t epoch = 0;
  while (true) {
    epoch = AwaitEpoch(epoch);
    if (stop_.load()) return;
    task_(context_, thread);
    if (pending_.fetch_sub(1) == 1 && caller_blocked_.load()) pending_.notify_one();
  }
}

}  // namespace somnus::cpu
