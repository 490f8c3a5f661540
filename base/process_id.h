#pragma once
// Processes of this host that are no children of this process, named so that a process id that the system has
// given away again is never taken for the process that had the id. Functions are thread safe.

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace somnus {

// Identifies a process: no two processes between two starts of the system have the same ProcessId.
struct ProcessId {
  pid_t pid = 0;
  uint64_t start_time = 0;  // clock ticks after the system's start

  bool operator==(const ProcessId& other) const = default;
};

// The process that has `pid` now; NotFound where no process has `pid`, or the process is a zombie.
absl::StatusOr<ProcessId> FindProcess(pid_t pid);
ProcessId ThisProcess();
// Names this start of this host's system: process ids of another start mean nothing here.
std::string BootId();
// Neither gone nor a zombie.
bool IsRunning(const ProcessId& process);

// A descriptor of the running process, which turns readable when it ends. The caller closes it. NotFound
// where the process has ended.
absl::StatusOr<int> OpenProcess(const ProcessId& process);
// Sends `signal` to the process behind a descriptor of OpenProcess. Errors are the same as of kill.
absl::Status SignalProcess(int descriptor, int signal);
// Waits until the process behind the descriptor has ended; false after `timeout`.
bool AwaitProcess(int descriptor, absl::Duration timeout);

// Sends SIGTERM to all running processes, SIGKILL to the processes that still run after `grace`, and waits
// until all have ended. PermissionDenied: a process of another user; DeadlineExceeded names a process that is
// still there 10 s after SIGKILL.
absl::Status EndProcesses(const std::vector<ProcessId>& processes, absl::Duration grace);

}  // namespace somnus
