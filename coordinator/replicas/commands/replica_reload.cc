#include "coordinator/replicas/commands/replica_reload.h"

#include <string>

#include "base/log.h"
#include "base/status_macros.h"
#include "coordinator/engine/caller.h"
#include "coordinator/engine/run_for_caller.h"
#include "coordinator/executor/memory_check.h"

namespace somnus {

absl::StatusOr<WeightsChange> ReplicaReload::Run() {
  RETURN_IF_ERROR(change_.Begin());
  const CallerScope begun(BegunCaller());
  absl::StatusOr<WeightsChange> change = ReloadInOrder();
  if (change.ok()) change_.NoteChanged(/*updates=*/false);
  return change;
}

absl::StatusOr<WeightsChange> ReplicaReload::ReloadInOrder() {
  const size_t first = change_.live().front();
  absl::StatusOr<WeightsChange> change = parts_.loops.loop(first).ReloadWeights(change_.of_replica());
  if (!change.ok()) return OfReplica(first, change.status());
  const std::vector<absl::Status> results = ReloadOthers(change->fingerprint);
  for (const size_t i : change_.live()) {
    if (results[i].ok() || parts_.loops.HasFailed(i)) continue;
    return absl::InternalError(OfReplica(i, results[i]).message());
  }
  return change;
}

std::vector<absl::Status> ReplicaReload::ReloadOthers(const std::string& files) {
  std::vector<absl::Status> results(parts_.loops.size());
  RunForCaller(change_.live().size() - 1, [&](size_t other) {
    const size_t i = change_.live()[other + 1];
    const absl::StatusOr<WeightsChange> own = parts_.loops.loop(i).ReloadWeights(change_.of_replica());
    results[i] = own.status();
    if (own.ok() && own->fingerprint != files)
      results[i] = absl::DataLossError("it has read other files than the others");
    if (IsRefusal(results[i]) || absl::IsDataLoss(results[i])) MakeStale(i);
  });
  return results;
}

void ReplicaReload::MakeStale(size_t replica) {
  const auto update = parts_.loops.loop(replica).BeginWeightUpdate({.mode = SleepMode::kKeep});
  if (update.ok()) return;
  LogError("{}replica {} has kept the weights from which nothing should be served: {}",
           parts_.options.log_name, replica, std::string(update.status().message()));
}

}  // namespace somnus
