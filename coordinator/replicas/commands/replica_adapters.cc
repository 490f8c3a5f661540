#include "coordinator/replicas/commands/replica_adapters.h"

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace somnus {

absl::StatusOr<TransitionReport> ReplicaAdapters::Run() {
  RETURN_IF_ERROR(turn().status());
  for (size_t replica = 0; replica < parts().loops.size(); ++replica) {
    if (!parts().loops.HasFailed(replica)) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("replica ", replica, " has failed: adapters change once it serves again"));
  }
  ASSIGN_OR_RETURN(TransitionReport report, RunOnAll());
  held_ = request_.adapters;
  for (HeldAdapter& adapter : held_) adapter.fingerprint = report.adapters[adapter.id];
  return report;
}

absl::StatusOr<TransitionReport> ReplicaAdapters::DoAt(EngineLoop* loop, size_t /*replica*/) {
  return loop->SetAdapters(request_.adapters);
}

absl::StatusOr<TransitionReport> ReplicaAdapters::UndoAt(EngineLoop* loop, size_t /*replica*/) {
  return loop->SetAdapters(held_);
}

}  // namespace somnus
