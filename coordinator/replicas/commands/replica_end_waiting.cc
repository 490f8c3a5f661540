#include "coordinator/replicas/commands/replica_end_waiting.h"

#include "base/status_macros.h"

namespace somnus {

absl::Status ReplicaEndWaiting::Run() {
  RETURN_IF_ERROR(turn().status());
  if (parts().board.state() == EngineState::kAwake) return absl::OkStatus();
  parts().queue.Refuse(error_);
  return RunOnAll().status();
}

absl::StatusOr<TransitionReport> ReplicaEndWaiting::DoAt(EngineLoop* loop, size_t /*replica*/) {
  loop->EndWaiting(error_);
  return TransitionReport();
}

}  // namespace somnus
