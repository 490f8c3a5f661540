#pragma once
// What the main thread of a worker waits for: the reasons to leave.

#include <sys/types.h>

#include <optional>
#include <string>

#include "absl/time/time.h"

namespace somnus {

// One per process, made before any other thread so that no thread takes its signals. Thread safe.
class LeaveSignal {
 public:
  // Blocks SIGTERM and SIGINT for this thread and all to come, ignores SIGPIPE. `parent`: leave when that
  // process is gone (already gone counts); 0: do not watch. `term_grace`: how long a first SIGTERM or SIGINT
  // waits for somebody else's reason; a second one does not.
  LeaveSignal(pid_t parent, absl::Duration term_grace);
  ~LeaveSignal();
  LeaveSignal(const LeaveSignal&) = delete;
  LeaveSignal& operator=(const LeaveSignal&) = delete;

  // From any thread; the first one counts.
  void Leave(int exit_code, const std::string& reason);

  struct Reason {
    int exit_code;
    std::string text;
  };
  Reason Wait();

 private:
  std::optional<Reason> HandleEvents(int timeout_ms);
  std::optional<Reason> ReadSignal();

  const absl::Duration term_grace_;
  absl::Time term_deadline_ = absl::InfiniteFuture();
  int signal_fd_, parent_fd_ = -1;
  int pipe_[2];  // carries the address of a Reason, which Wait takes over
};

}  // namespace somnus
