#pragma once
// A lifecycle call of a client, from its arrival at the engine loop until its caller gets the result. Plain
// state; the loop thread's once it has arrived.

#include <functional>

#include "absl/status/statusor.h"
#include "coordinator/engine/engine.h"
#include "coordinator/residency/residency.h"
#include "coordinator/residency/transition_report.h"

namespace somnus {

struct LifecycleCommand {
  enum class Kind { kSleep, kWakeUp, kResetPrefixCache, kRestart, kRevive };
  Kind kind = Kind::kSleep;
  SleepSpec spec;                     // of kSleep; of kWakeUp its tags
  SleepMode mode = SleepMode::kKeep;  // of kSleep
  bool restart_workers = true;        // of kRevive
  // Called exactly once, on the loop thread, after the state has changed.
  std::function<void(absl::StatusOr<TransitionReport>)> reply;
  Residency before;           // when it began
  int num_interruptions = 0;  // losses of the group after which it had to begin again
};

}  // namespace somnus
