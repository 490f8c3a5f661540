#include "coordinator/replicas/set_state.h"

#include <algorithm>

namespace somnus {

EngineState SetState(const std::vector<EngineState>& replicas, SetCall call, bool draining) {
  const auto count = [&](EngineState state) { return std::count(replicas.begin(), replicas.end(), state); };
  const auto num_live = static_cast<int64_t>(replicas.size()) - count(EngineState::kFailed);
  if (num_live == 0) return EngineState::kFailed;
  if (draining) return EngineState::kDraining;
  if (count(EngineState::kFallingAsleep) > 0) return EngineState::kFallingAsleep;
  if (count(EngineState::kWaking) > 0) return EngineState::kWaking;
  const bool is_mixed = count(EngineState::kAwake) > 0 && count(EngineState::kAsleep) > 0;
  if (is_mixed && call == SetCall::kSleep) return EngineState::kFallingAsleep;
  if (is_mixed && call == SetCall::kWakeUp) return EngineState::kWaking;
  if (count(EngineState::kAwake) > 0)
    return call == SetCall::kPause ? EngineState::kPausing : EngineState::kAwake;
  if (count(EngineState::kAsleep) == num_live) return EngineState::kAsleep;
  return count(EngineState::kPaused) > 0 ? EngineState::kPaused : EngineState::kRecovering;
}

}  // namespace somnus
