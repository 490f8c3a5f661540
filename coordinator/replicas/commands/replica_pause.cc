#include "coordinator/replicas/commands/replica_pause.h"

#include "base/status_macros.h"

namespace somnus {

absl::Status ReplicaPause::Run() {
  RETURN_IF_ERROR(turn().Check());
  CallScope scope(parts(), SetCall::kPause);
  RETURN_IF_ERROR(scope.Settle(request_.mode));
  was_paused_ = parts().board.Stats().paused;
  return RunOnAll().status();
}

absl::StatusOr<TransitionReport> ReplicaPause::DoAt(EngineLoop* loop, size_t /*replica*/) {
  RETURN_IF_ERROR(loop->Pause({.clear_cache = request_.clear_cache}));
  return TransitionReport();
}

absl::StatusOr<TransitionReport> ReplicaPause::UndoAt(EngineLoop* loop, size_t /*replica*/) {
  RETURN_IF_ERROR(loop->Resume());
  return TransitionReport();
}

absl::Status ReplicaResume::Run() {
  RETURN_IF_ERROR(turn().Check());
  return RunOnAll().status();
}

absl::StatusOr<TransitionReport> ReplicaResume::DoAt(EngineLoop* loop, size_t /*replica*/) {
  RETURN_IF_ERROR(loop->Resume());
  return TransitionReport();
}

}  // namespace somnus
