#include "coordinator/several_models/model_transition.h"

#include <algorithm>

namespace somnus {

ModelState ModelTransition::State(EngineState state) const {
  if (decision.has_value()) {
    switch (decision->action) {
      case ResidencyAction::kWake:
        return ModelState::kWaking;
      case ResidencyAction::kDrain:
        return state == EngineState::kFallingAsleep ? ModelState::kFallingAsleep : ModelState::kDraining;
      case ResidencyAction::kDropBackup:
        return ModelState::kDeepening;
      default:
        return ModelState::kFallingAsleep;
    }
  }
  if (IsResident(state)) return ModelState::kAwake;
  if (state == EngineState::kFallingAsleep) return ModelState::kFallingAsleep;
  if (state == EngineState::kAsleep) return ModelState::kAsleep;
  if (state == EngineState::kWaking) return ModelState::kWaking;
  if (state == EngineState::kFailed) return ModelState::kFailed;
  return ModelState::kLoading;  // also of an engine that recovers or drains: the policy leaves the model
                                // alone
}

int64_t ModelTransition::Begin(const ResidencyDecision& begun, const OperatorWake* wake) {
  if (begun.action == ResidencyAction::kWake) carried = wake == nullptr ? std::nullopt : std::optional(*wake);
  decision = begun;
  return ++decision_id;
}

void ModelTransition::End(int64_t id) {
  if (decision_id == id) decision.reset();
}

void ModelTransition::NoteSleepTime(ResidencyAction action, absl::Duration time) {
  if (action == ResidencyAction::kSleepIfIdle || action == ResidencyAction::kPreempt) sleep_time = time;
}

void ModelTransition::ForgetFailedSleeps(MonotonicTime now) {
  failed_sleeps.Restart();
  awake_since = std::min(awake_since, now);
}

void ModelTransition::NoteUntried(MonotonicTime now, absl::Duration pause) {
  decision.reset();
  retries.NoteDeclined(now);
  awake_since = now + pause;
}

}  // namespace somnus
