#include "coordinator/replicas/commands/replica_transition.h"

#include "base/monotonic.h"

namespace somnus {

absl::StatusOr<TransitionReport> ReplicaTransition::RunTransition(bool wakes) {
  const MonotonicTime began = parts().options.monotonic_now();
  before_ = parts().loops.Residencies();
  was_paused_ = parts().board.Stats().paused;
  absl::StatusOr<TransitionReport> report = RunOnAll();
  if (!report.ok() || parts().observer == nullptr || !report->changed()) return report;
  TransitionEvent event;
  event.wakes = wakes;
  event.level = parts().board.Stats().sleep_level;
  event.duration = parts().options.monotonic_now() - began;
  event.report = *report;
  parts().observer->OnTransition(event);
  return report;
}

}  // namespace somnus
