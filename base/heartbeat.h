#pragma once
// Signs of life of the loops that a process serves with, for probes that ask whether to restart the process.
//
// A loop makes a Heartbeat on its thread, and calls Beat in every turn. A loop that has given no sign for
// longer than the limit hangs: in a deadlock, an endless loop, or a system call that does not return. A loop
// that waits for work is alive: WaitBeating gives a sign of life at intervals. Around a call that may take
// longer than a turn, up to a bound of its own, the loop makes a Heartbeat::Wait.
//
//   const Heartbeat beat(options.log_name, "engine loop");
//   while (TakeTurn()) beat.Beat();
//
// Threads of a pool do the same work: the pool lives as long as any of its threads.
//
// The time is RunningNow (running_clock.h): a process that is stopped and goes on has not hung.

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <set>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/monotonic.h"

namespace somnus {

class Heartbeat;

// The loops of a process. Thread safe, and waits for no loop.
class Heartbeats {
 public:
  explicit Heartbeats(MonotonicClock now) : now_(std::move(now)) {}

  static Heartbeats& OfProcess();

  // Loops that begin from now on are watched, with this limit. At first the limit is zero: no loop is
  // watched.
  void Watch(absl::Duration limit);
  // Unavailable names the loop that has been silent for longest beyond the limit, and since when.
  absl::Status Check() const;
  // The longest time by which a sign of a loop is late, which may be well below the limit.
  absl::Duration LongestSilence() const;

 private:
  friend class Heartbeat;
  struct Silence {
    std::string loop;
    absl::Duration late;   // beyond the bound that the loop has announced
    absl::Duration since;  // the last sign
  };
  Silence Longest() const;

  const MonotonicClock now_;
  std::atomic<int64_t> limit_ns_{0};
  mutable std::mutex mu_;  // not absl::Mutex: see monotonic.h
  std::set<const Heartbeat*> loops_;
};

// The signs of a loop, from the thread that constructs and destroys the object. The latest of several objects
// of a thread counts.
class Heartbeat {
 public:
  // `of`: "NAME: ", the model, or empty. `pool`: the same address for all threads of a pool; null: the loop
  // is on its own. The thread gets the loop's name, as far as 15 bytes go.
  Heartbeat(absl::string_view of, absl::string_view loop, const void* pool = nullptr,
            Heartbeats* all = &Heartbeats::OfProcess());
  ~Heartbeat();
  Heartbeat(const Heartbeat&) = delete;

  // A turn begins or ends.
  void Beat() const;
  // The heartbeat of this thread; null: the thread runs no loop, or loops are not watched.
  static const Heartbeat* OfThread();
  // The longest time between two signs of a loop that waits for work.
  absl::Duration tick() const;

  // As long as the object exists, this thread's loop is in a call that may take up to `bound`: a wait for
  // work, or for a peer that a deadline of the call watches. Infinite: for as long as the call takes.
  class Wait {
   public:
    explicit Wait(absl::Duration bound);
    ~Wait();
    Wait(const Wait&) = delete;

   private:
    const Heartbeat* const beat_;
    int64_t before_ns_ = 0;
  };

 private:
  friend class Heartbeats;

  const std::string name_;
  const void* const pool_;
  Heartbeats* const all_;  // null: the loop is not watched
  const Heartbeat* const outer_;
  mutable std::atomic<int64_t> last_ns_{0};   // the last sign
  mutable std::atomic<int64_t> bound_ns_{0};  // how much longer than a turn the call under way may take
};

// Waits like changed->wait_for, with signs of life of this thread's loop meanwhile. The time may be infinite.
template <typename Done>
void WaitBeating(std::condition_variable* changed, std::unique_lock<std::mutex>* lock, absl::Duration time,
                 Done done) {
  // A year stands for infinity: the end of the wait must be a time that the clock can represent.
  absl::Duration left = std::clamp(time, absl::ZeroDuration(), absl::Hours(24 * 365));
  const Heartbeat* const beat = Heartbeat::OfThread();
  if (beat == nullptr) {
    changed->wait_for(*lock, absl::ToChronoNanoseconds(left), done);
    return;
  }
  const MonotonicTime end = MonotonicNow() + left;
  while (!done() && left > absl::ZeroDuration()) {
    changed->wait_for(*lock, absl::ToChronoNanoseconds(std::min(left, beat->tick())), done);
    beat->Beat();
    left = end - MonotonicNow();
  }
}

}  // namespace somnus
