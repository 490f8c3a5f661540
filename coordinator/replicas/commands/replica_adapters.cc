#include "coordinator/replicas/commands/replica_adapters.h"

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace somnus {

absl::Status ReplicaAdapters::Run() {
  RETURN_IF_ERROR(turn().status());
  for (size_t replica = 0; replica < parts().loops.size(); ++replica) {
    if (!parts().loops.HasFailed(replica)) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("replica ", replica, " has failed: adapters change once it serves again"));
  }
  RETURN_IF_ERROR(RunOnAll().status());
  held_ = request_.adapters;
  return absl::OkStatus();
}

absl::StatusOr<TransitionReport> ReplicaAdapters::DoAt(EngineLoop* loop, size_t /*replica*/) {
  RETURN_IF_ERROR(loop->SetAdapters(request_.adapters));
  return TransitionReport();
}

absl::StatusOr<TransitionReport> ReplicaAdapters::UndoAt(EngineLoop* loop, size_t /*replica*/) {
  RETURN_IF_ERROR(loop->SetAdapters(held_));
  return TransitionReport();
}

}  // namespace somnus
