#pragma once
// Logs when a loop of the process hangs, and when all loops go on again (base/heartbeat.h). The thread takes
// no lock that a loop could hold. Thread safe.

#include <thread>

#include "absl/time/time.h"
#include "base/heartbeat.h"
#include "base/monotonic.h"

namespace somnus {

class LivenessLog {
 public:
  // Looks at the loops every `interval`, from a thread of its own.
  explicit LivenessLog(const Heartbeats* heartbeats, absl::Duration interval = absl::Milliseconds(500));
  ~LivenessLog();
  LivenessLog(const LivenessLog&) = delete;

 private:
  void Run(absl::Duration interval) const;

  const Heartbeats& heartbeats_;
  StopSignal stop_;
  std::thread thread_;
};

}  // namespace somnus
