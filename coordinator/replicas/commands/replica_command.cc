#include "coordinator/replicas/commands/replica_command.h"

namespace somnus {

absl::StatusOr<TransitionReport> ReplicaCommand::UndoAt(EngineLoop* /*loop*/, size_t /*replica*/) {
  return TransitionReport();
}

absl::StatusOr<TransitionReport> ReplicaCommand::RunOnAll() {
  ReplicaCalls calls(parts_);
  calls.Run([this](EngineLoop* loop, size_t i) { return DoAt(loop, i); });
  absl::StatusOr<TransitionReport> report = calls.Sum();
  if (report.ok()) return report;
  return calls.Undo(
      report.status(), [this](size_t i) { return Undoes(i); },
      [this](EngineLoop* loop, size_t i) { return UndoAt(loop, i); });
}

}  // namespace somnus
