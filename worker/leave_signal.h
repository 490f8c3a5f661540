#pragma once
// The reasons to leave, for which the main thread of a worker waits.

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/time/time.h"
#include "base/monotonic.h"

namespace somnus {

// A process has one LeaveSignal, made before any other thread so that no thread takes the signals. Thread
// safe.
class LeaveSignal {
 public:
  // Blocks SIGTERM and SIGINT for this thread and all to come, ignores SIGPIPE. `parent`: leave when that
  // process is gone (already gone counts); 0: do not watch.
  explicit LeaveSignal(pid_t parent);
  ~LeaveSignal();
  LeaveSignal(const LeaveSignal&) = delete;
  LeaveSignal& operator=(const LeaveSignal&) = delete;

  // From now on the parent may end: the worker waits for another coordinator. From any thread.
  void StopWatchingParent() { watch_parent_ = false; }

  // May be called from any thread; the first call counts.
  void Leave(int exit_code, const std::string& reason);

  // From now on a first SIGTERM or SIGINT only starts a time of `grace`, in which another reason may come; a
  // second signal ends it. Before this call, and with a grace of zero, the first signal is the reason.
  void WaitAfterTerm(absl::Duration grace) { term_grace_ms_ = absl::ToInt64Milliseconds(grace); }

  struct Reason {
    int exit_code;
    std::string text;
  };
  // Blocks until there is a reason. On the thread that made the object.
  Reason Wait();

 private:
  std::unique_ptr<Reason> TakeReason();
  std::optional<Reason> HandleEvents(int timeout_ms);
  std::optional<Reason> ReadSignal();

  std::atomic<int64_t> term_grace_ms_{0};
  std::atomic<bool> watch_parent_{true};
  std::optional<MonotonicTime> term_deadline_;  // set by the first signal, when there is a grace
  int signal_fd_, parent_fd_ = -1;
  int pipe_[2];  // carries the address of a Reason, which Wait takes over
};

}  // namespace somnus
