#pragma once
// Says whether another process of this host is still alive. It is not misled when the pid is used again.

#include <cstdint>

namespace somnus {

// Start time of a process in clock ticks after boot; 0 when there is no such process.
uint64_t ProcessStartTime(int64_t pid);

// Watches one process. Not copyable; Alive may be called from any thread.
class ProcessWatch {
 public:
  // `start_time` as ProcessStartTime returned it when the process was known to be alive.
  ProcessWatch(int64_t pid, uint64_t start_time);
  ~ProcessWatch();
  ProcessWatch(const ProcessWatch&) = delete;
  ProcessWatch& operator=(const ProcessWatch&) = delete;

  // False from the moment the process ends, also while it is a zombie. One system call.
  bool Alive() const;
  int64_t pid() const { return pid_; }

 private:
  bool Listed() const;

  const int64_t pid_;
  const uint64_t start_time_;
  bool gone_ = false;  // the process was gone at construction
  int pidfd_ = -1;     // -1: the kernel has none (before 5.3), /proc is read instead
};

}  // namespace somnus
