#include "coordinator/liveness_log.h"

#include <string>

#include "base/log.h"

namespace somnus {

LivenessLog::LivenessLog(const Heartbeats* heartbeats, absl::Duration interval)
    : heartbeats_(*heartbeats), thread_([this, interval] { Run(interval); }) {}

LivenessLog::~LivenessLog() {
  stop_.Stop();
  thread_.join();
}

void LivenessLog::Run(absl::Duration interval) const {
  bool was_alive = true;
  while (!stop_.WaitFor(interval)) {
    const absl::Status alive = heartbeats_.Check();
    if (alive.ok() == was_alive) continue;
    was_alive = alive.ok();
    if (was_alive) {
      LogWarning("all threads that serve give signs of life again");
    } else {
      LogError("{}", std::string(alive.message()));
    }
  }
}

}  // namespace somnus
