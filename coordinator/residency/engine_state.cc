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
    case EngineState::kPausing:
      return "pausing";
    case EngineState::kPaused:
      return "paused";
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
      return to == EngineState::kPausing || to == EngineState::kPaused || to == EngineState::kFallingAsleep;
    case EngineState::kPausing:
      return to == EngineState::kPaused || to == EngineState::kFallingAsleep || to == EngineState::kAwake;
    case EngineState::kPaused:
      return to == EngineState::kAwake || to == EngineState::kFallingAsleep;
    case EngineState::kFallingAsleep:
      return to == EngineState::kAsleep || to == EngineState::kAwake || to == EngineState::kPaused;
    case EngineState::kRecovering:
      return to == EngineState::kAsleep || to == EngineState::kAwake || to == EngineState::kPausing ||
             to == EngineState::kPaused;
    case EngineState::kLoading:
      return to == EngineState::kAwake || to == EngineState::kAsleep;
    case EngineState::kWaking:
      return to == EngineState::kAwake || to == EngineState::kAsleep || to == EngineState::kPaused;
    case EngineState::kAsleep:
      return to == EngineState::kWaking;
    case EngineState::kDraining:
    case EngineState::kFailed:
      return false;
  }
  return false;
}

bool AdmitsRequests(EngineState state) {
  return state != EngineState::kLoading && state != EngineState::kDraining && state != EngineState::kFailed;
}

bool IsReady(EngineState state) { return state == EngineState::kAwake; }

bool IsLive(EngineState state) { return state != EngineState::kFailed; }

bool IsSleeping(EngineState state, int sleep_level, bool paused) {
  if (state == EngineState::kRecovering) return sleep_level > 0 || paused;
  return state == EngineState::kAsleep || state == EngineState::kWaking || state == EngineState::kPaused;
}

bool IsPaused(EngineState state, int sleep_level, bool paused) {
  return paused || IsSleeping(state, sleep_level, paused);
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
    case EngineState::kPausing:
      return "The engine is about to pause; requests wait until it is resumed.";
    case EngineState::kPaused:
      return "The engine is paused; requests wait until it is resumed.";
  }
  return "The engine's state is unknown.";
}

}  // namespace somnus
