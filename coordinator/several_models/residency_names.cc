// The names of residency_policy.h's decisions in metrics and logs.

#include "coordinator/several_models/residency_policy.h"

namespace somnus {

const char* ResidencyActionName(ResidencyAction action) {
  switch (action) {
    case ResidencyAction::kWake:
      return "wake";
    case ResidencyAction::kSleepIfIdle:
      return "sleep_if_idle";
    case ResidencyAction::kDrain:
      return "drain";
    case ResidencyAction::kPreempt:
      return "preempt";
    case ResidencyAction::kDropBackup:
      return "drop_backup";
    case ResidencyAction::kPrefetch:
      return "prefetch";
    case ResidencyAction::kRelease:
      return "release";
    case ResidencyAction::kStay:
      return "stay";
  }
  return "unknown";
}

const char* ResidencyReasonName(ResidencyReason reason) {
  switch (reason) {
    case ResidencyReason::kRequestsWait:
      return "requests_wait";
    case ResidencyReason::kPinned:
      return "pinned";
    case ResidencyReason::kIdle:
      return "idle";
    case ResidencyReason::kTurnIsOver:
      return "turn_is_over";
    case ResidencyReason::kWaitedTooLong:
      return "waited_too_long";
    case ResidencyReason::kHostMemory:
      return "host_memory";
    case ResidencyReason::kHalfAwake:
      return "half_awake";
    case ResidencyReason::kOnlyCopy:
      return "only_copy";
    case ResidencyReason::kUnused:
      return "unused";
  }
  return "unknown";
}

}  // namespace somnus
