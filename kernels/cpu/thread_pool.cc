#include "kernels/cpu/thread_pool.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "absl/time/time.h"
#include "base/cpus.h"
#include "base/monotonic.h"
#include "base/pause.h"

namespace somnus::cpu {
namespace {

// Longer than the gap between two ops, and more than the cost of waking a thread. A thread that waits for
// longer blocks, and does not yield instead: where other processes want the CPU, each yield lasts as long as
// their turn, while a thread that blocked runs soon after the wake-up.
constexpr absl::Duration kSpinTime = absl::Microseconds(100);
constexpr int kPauses = 64;  // between two looks at the clock

// Waits actively; returns whether `done` has come within kSpinTime.
template <typename Done>
bool SpinUntil(const Done& done) {
  if (done()) return true;
  const MonotonicTime end = MonotonicNow() + kSpinTime;
  do {
    for (int i = 0; i < kPauses; ++i) {
      PauseCpu();
      if (done()) return true;
    }
  } while (MonotonicNow() < end);
  return false;
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

Partition::Partition(const std::vector<double>& speeds) : num_threads_(static_cast<int>(speeds.size())) {
  const double all = std::accumulate(speeds.begin(), speeds.end(), 0.0);
  double sum = 0;
  for (const double speed : speeds) {
    sum += speed;
    ends_.push_back(std::llround(sum / all * static_cast<double>(kWhole)));
  }
}

int Partition::OwnerBySpeed(int64_t item, int64_t total) const {
  const auto has_ended = [&](int64_t end) { return total * end / kWhole <= item; };
  return static_cast<int>(std::partition_point(ends_.begin(), ends_.end(), has_ended) - ends_.begin());
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

void ThreadPool::UnpinCaller() {
  if (pinned_caller_ != std::this_thread::get_id()) return;
  pinned_caller_ = std::thread::id();
  UnpinThisThread();
}

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
  return seen + 1;  // Runs do not overlap, so the epoch moves by 1 at a time.
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
