#pragma once
// The Engine that clients and operators call where several models share the devices (shared_devices.h). Calls
// that concern one model alone go to the model's engine; calls that concern other models, too, go to
// SharingCalls. Thread safe.

#include <functional>
#include <memory>
#include <vector>

#include "coordinator/engine/engine.h"

namespace somnus {

// The calls are thread safe, and valid as long as the engine is called.
struct SharingCalls {
  std::function<absl::Status(std::vector<EngineRequest>)> submit;
  std::function<absl::Status()> health;
  std::function<EngineStats()> stats;
  std::function<absl::StatusOr<TransitionReport>(const SleepRequest&)> sleep;
  // Waits until there is room.
  std::function<absl::StatusOr<TransitionReport>(const WakeUpRequest&)> wake_up;
  std::function<absl::StatusOr<WeightsChange>(const WeightsRequest&)> reload;
  std::function<absl::StatusOr<std::unique_ptr<WeightUpdate>>(const WeightsRequest&)> update;
  std::function<absl::Status()> revive;
  std::function<void()> note;  // the engine may be in another state
};

std::shared_ptr<Engine> MakeSharingEngine(std::shared_ptr<Engine> engine, SharingCalls calls);

}  // namespace somnus
