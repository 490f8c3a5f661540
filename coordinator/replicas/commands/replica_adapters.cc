#include "coordinator/replicas/commands/replica_adapters.h"

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace somnus {

absl::StatusOr<TransitionReport> ReplicaAdapters::Run() {
  RETURN_IF_ERROR(turn().status());
  for (const HeldAdapter& adapter : held_) {
    if (!HasId(request_.adapters, adapter.id)) continue;
    kept_.push_back(adapter);
    kept_.back().must_be_held = true;
  }
  absl::StatusOr<TransitionReport> report = RunOnAll();
  held_ = report.ok() ? request_.adapters : kept_;
  if (!report.ok()) return report;
  for (HeldAdapter& adapter : held_) adapter.fingerprint = report->adapters[adapter.id];
  for (size_t replica = 0; replica < parts().loops.size(); ++replica) {
    if (!parts().loops.HasFailed(replica)) continue;
    // An error: the replica serves again, or ends.
    (void)parts().loops.loop(replica).Run(SetAdaptersRequest{.adapters = held_, .by_next_workers = true});
  }
  return report;
}

absl::StatusOr<TransitionReport> ReplicaAdapters::DoAt(EngineLoop* loop, size_t replica) {
  ASSIGN_OR_RETURN(TransitionReport report, loop->SetAdapters(request_.adapters));
  const absl::Status same = Compare(report, replica);
  if (same.ok()) return report;
  RETURN_IF_ERROR(UndoAt(loop, replica).status());
  return same;
}

absl::Status ReplicaAdapters::Compare(const TransitionReport& report, size_t replica) {
  absl::MutexLock lock(&mu_);
  for (const HeldAdapter& adapter : request_.adapters) {
    const auto read = report.adapters.find(adapter.id);
    if (read == report.adapters.end()) continue;  // dropped by that replica
    if (fingerprints_.try_emplace(adapter.id, read->second).first->second == read->second) continue;
    return absl::DataLossError(absl::StrCat("adapter '", adapter.name, "' (", adapter.path,
                                            "): the files of replica ", replica,
                                            " differ from those of another replica"));
  }
  return absl::OkStatus();
}

absl::StatusOr<TransitionReport> ReplicaAdapters::UndoAt(EngineLoop* loop, size_t /*replica*/) {
  return loop->SetAdapters(kept_);
}

}  // namespace somnus
