#include "coordinator/residency/engine_state.h"

namespace somnus {

const char* EngineStateName(EngineState state) {
  switch (state) {
    case EngineState::kLoading:
      return "loading";
    case EngineState::kAwake:
      return "awake";
    case EngineState::kFallingAsleep:
      return "falling_asleep";
    case EngineState::kAsleep:
      return "asleep";
    case EngineState::kWaking:
      return "waking";
    case EngineState::kRecovering:
      return "recovering";
    case EngineState::kDraining:
      return "draining";
    case EngineState::kFailed:
      return "failed";
  }
  return "unknown";
}

bool IsAllowedChange(EngineState from, EngineState to) {
  if (from == EngineState::kFailed) return to == EngineState::kRecovering;
  if (to == EngineState::kFailed) return true;
  if (to == EngineState::kDraining) return AdmitsRequests(from);
  if (to == EngineState::kRecovering) return AdmitsRequests(from) && from != to;
  switch (from) {
    case EngineState::kAwake:
      return to == EngineState::kFallingAsleep;
    case EngineState::kLoading:
    case EngineState::kFallingAsleep:
    case EngineState::kWaking:
    case EngineState::kRecovering:
      return to == EngineState::kAwake || to == EngineState::kAsleep;
    case EngineState::kAsleep:
      return to == EngineState::kWaking;
    case EngineState::kDraining:
    case EngineState::kFailed:
      return false;
  }
  return false;
}

bool AdmitsRequests(EngineState state) {
  return state == EngineState::kAwake || state == EngineState::kFallingAsleep ||
         state == EngineState::kAsleep || state == EngineState::kWaking || state == EngineState::kRecovering;
}

bool IsReady(EngineState state) { return state == EngineState::kAwake; }

bool IsLive(EngineState state) { return state != EngineState::kFailed; }

bool IsSleeping(EngineState state, int sleep_level) {
  if (state == EngineState::kRecovering) return sleep_level > 0;
  return state == EngineState::kAsleep || state == EngineState::kWaking;
}

const char* WhyNotReady(EngineState state) {
  switch (state) {
    case EngineState::kLoading:
      return "The model is loading.";
    case EngineState::kAwake:
      return "";
    case EngineState::kFallingAsleep:
      return "The engine is falling asleep; requests wait until it is woken.";
    case EngineState::kAsleep:
      return "The engine is asleep; requests wait until it is woken.";
    case EngineState::kWaking:
      return "The engine is waking up; requests wait until it is awake.";
    case EngineState::kRecovering:
      return "The engine is recovering from the loss of a worker; requests wait until the group is whole "
             "again.";
    case EngineState::kDraining:
      return "The server is shutting down.";
    case EngineState::kFailed:
      return "The engine has failed.";
  }
  return "The engine's state is unknown.";
}

}  // namespace somnus
