#pragma once
// A lifecycle call of a client, from its arrival at the engine loop until its caller gets the result. Plain
// state; the loop thread's once it has arrived.

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/residency/residency.h"

namespace somnus {

struct LifecycleCommand {
  enum class Kind { kSleep, kWakeUp, kResetPrefixCache, kRestart };
  Kind kind = Kind::kSleep;
  int level = 0;                  // of kSleep
  std::vector<std::string> tags;  // of kWakeUp; empty: all
  // Called exactly once, on the loop thread, after the state has changed.
  std::function<void(absl::StatusOr<TagBytes>)> reply;
  int num_interruptions = 0;  // losses of the group after which it had to begin again
};

}  // namespace somnus
