#pragma once
// A simulated machine room: virtual time, processes and their threads, from one seed.
//
// Threads are fibers on one host thread. threads.cc defines pthreads' and Abseil's locks, conditions and
// clocks over fibers, so that code for real threads runs here unchanged. A fiber runs until it blocks; at a
// lock a fiber lets other fibers go first now and then. The next fiber, and everything else that happens by
// chance, is drawn from the seed: the same seed gives the same run.
//
// A killed process does nothing any more: the process's fibers are never resumed, their objects are not
// destroyed, and the memory stays allocated until the host process ends.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"

namespace somnus::simulation {

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t Next();
  // In [low, high].
  int64_t Between(int64_t low, int64_t high);
  absl::Duration Between(absl::Duration low, absl::Duration high);
  bool Chance(double probability);

 private:
  uint64_t state_;
};

class World {
 public:
  explicit World(uint64_t seed);
  ~World();
  World(const World&) = delete;

  // The world that runs now, or null.
  static World* current();

  absl::Duration now() const { return now_; }
  // Somebody corrects the wall clock of every host.
  void JumpWallClock(absl::Duration by) { wall_offset_ += by; }
  absl::Duration wall_offset() const { return wall_offset_; }
  Random& random() { return random_; }
  // From now on Log prints.
  void SetVerbose(bool verbose) { verbose_ = verbose; }
  bool verbose() const { return verbose_; }
  void Log(const std::string& text);
  // An invariant is broken. The first violation is kept, and ends the run.
  void Violate(const std::string& text);
  const std::string& violation() const { return violation_; }
  // A number that two runs share only when the same threads ran, the same events happened at the same times,
  // and the same values were added, in the same order.
  uint64_t trace() const { return trace_; }
  void AddToTrace(uint64_t value);
  void AddToTrace(const std::string& bytes);

  int NewProcess(const std::string& name);
  // Sends SIGKILL, SIGSTOP, SIGCONT. Nothing happens to a process that has ended.
  void Kill(int pid, const std::string& how);
  void Stop(int pid);
  void Continue(int pid);
  bool alive(int pid) const;
  bool stopped(int pid) const;
  // How the process has ended: "was killed by signal 9 (Killed)".
  const std::string& end(int pid) const;
  const std::string& name(int pid) const;
  // `callback` is called once when the process has ended, on no fiber.
  void OnEnd(int pid, std::function<void()> callback);

  // Starts a thread, and returns its number. `current` is the process of the fiber that runs, 0 on none.
  uint64_t Spawn(int pid, std::function<void()> body);
  int current_process() const;
  // The number of the thread that runs, 0 on none.
  uint64_t current_thread() const;
  bool on_fiber() const { return running_ != nullptr; }
  // Returns once the thread has ended.
  void Join(uint64_t thread);

  // Suspends the fiber until Wake(key), or until `deadline`: Block then returns false.
  bool Block(const void* key, absl::Duration deadline = absl::InfiniteDuration());
  void Wake(const void* key);
  void Sleep(absl::Duration duration);
  // Lets other fibers go first.
  void Yield();
  // Yield, with a small probability.
  void MaybeYield();
  // Calls `look` like an event: locks do nothing within, even locks that fibers hold. `look` must not block.
  void LookAround(const std::function<void()>& look);
  // Calls `event` after `delay`, on no fiber. `event` must not block.
  void After(absl::Duration delay, std::function<void()> event);

  // Runs until `thread` has ended. False, with a violation, when a violation was found, when nothing can
  // happen any more, or when `limit` has passed.
  bool Run(uint64_t thread, absl::Duration limit);

 private:
  struct Thread;
  struct Process;

  void Ready(Thread* thread);
  void Resume(Thread* thread);
  void Suspend();
  void End(Process* process, const Thread* self, const std::string& how);

  Random random_;
  absl::Duration now_;
  absl::Duration wall_offset_;
  uint64_t num_events_ = 0;
  uint64_t trace_ = 0;
  int64_t resumed_at_this_time_ = 0;
  bool verbose_ = false;
  std::string violation_;
  std::map<std::pair<absl::Duration, uint64_t>, std::function<void()>> events_;  // by time, then order
  std::vector<std::unique_ptr<Thread>> threads_;                                 // by number
  std::vector<std::unique_ptr<Process>> processes_;
  std::vector<Thread*> ready_;
  std::map<const void*, std::vector<Thread*>> blocked_;
  Thread* running_ = nullptr;
};

}  // namespace somnus::simulation
