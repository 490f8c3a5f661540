#include "coordinator/replicas/commands/replica_wake_up.h"

#include "base/status_macros.h"
#include "coordinator/executor/memory_check.h"

namespace somnus {

absl::StatusOr<TransitionReport> ReplicaWakeUp::Run() {
  RETURN_IF_ERROR(turn().Check());
  const CallScope scope(parts(), SetCall::kWakeUp);
  RETURN_IF_ERROR(CheckMemory());
  absl::StatusOr<TransitionReport> report = RunTransition(/*wakes=*/true);
  if (report.ok()) EndPause();
  return report;
}

void ReplicaWakeUp::EndPause() const {
  bool serves = false, pauses = false;
  for (const EngineStats& stats : parts().loops.Stats()) {
    serves |= stats.state == EngineState::kAwake;
    pauses |= stats.paused;
  }
  if (!serves || !pauses) return;
  ReplicaCalls(parts()).Run([](EngineLoop* loop, size_t) -> absl::StatusOr<TransitionReport> {
    RETURN_IF_ERROR(loop->Resume());
    return TransitionReport();
  });
}

absl::StatusOr<TransitionReport> ReplicaWakeUp::DoAt(EngineLoop* loop, size_t /*replica*/) {
  return for_arrivals_ ? loop->WakeForArrivals() : loop->WakeUp(request_.tags, request_.load_weights);
}

absl::StatusOr<TransitionReport> ReplicaWakeUp::UndoAt(EngineLoop* loop, size_t replica) {
  ASSIGN_OR_RETURN(TransitionReport undone, loop->Sleep({.level = before(replica).level(),
                                                         .tags = before(replica).ToWake(request_.tags),
                                                         .force = true}));
  if (was_paused()) RETURN_IF_ERROR(loop->Pause({.clear_cache = false}));  // the wake-up has ended the pause
  return undone;
}

absl::Status ReplicaWakeUp::CheckMemory() const {
  std::vector<std::vector<RankNeed>> needs(parts().loops.size());
  ReplicaCalls(parts()).Run([&](EngineLoop* loop, size_t i) -> absl::StatusOr<TransitionReport> {
    ASSIGN_OR_RETURN(needs[i], loop->PlanWakeUp(request_.tags));
    return TransitionReport();
  });
  return CheckMemoryOfReplicas(needs);
}

}  // namespace somnus
