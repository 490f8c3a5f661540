#pragma once
// What clients and operators see of an engine that shares its devices (shared_devices.h): an Engine that
// passes on what concerns itself alone, and asks for what concerns the others, too. Thread safe.

#include <functional>
#include <memory>
#include <vector>

#include "coordinator/engine/engine.h"

namespace somnus {

// Thread safe, and valid as long as the engine is called.
struct SharingCalls {
  std::function<absl::Status(std::vector<EngineRequest>)> submit;
  std::function<absl::Status()> health;
  std::function<absl::StatusOr<TransitionReport>(const SleepRequest&)> sleep;
  std::function<absl::StatusOr<TransitionReport>()> wake_up;  // of all tags, when there is room
  std::function<void()> note;                                 // the engine may be in another state
};

std::shared_ptr<Engine> MakeSharingEngine(std::shared_ptr<Engine> engine, SharingCalls calls);

}  // namespace somnus
