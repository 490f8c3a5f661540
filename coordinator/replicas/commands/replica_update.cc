#include "coordinator/replicas/commands/replica_update.h"

#include "base/status_macros.h"
#include "base/threads.h"
#include "coordinator/engine/caller.h"
#include "coordinator/executor/memory_check.h"

namespace somnus {

UpdateWeightsRequest::Result ReplicaUpdate::Begin(const SetParts& parts,
                                                  const UpdateWeightsRequest& request) {
  std::unique_ptr<ReplicaUpdate> update(new ReplicaUpdate(parts, request));
  RETURN_IF_ERROR(update->BeginAll());
  return update;
}

absl::Status ReplicaUpdate::BeginAll() {
  RETURN_IF_ERROR(change_.Begin());
  const CallerScope begun(BegunCaller());
  for (const size_t replica : change_.live()) {
    const absl::Status status = BeginAt(replica);
    const bool is_first = replica == change_.live().front();
    if (status.ok() || (!is_first && parts_.loops.HasFailed(replica))) continue;
    // An earlier replica has already changed its weights, so a refusal now is an internal error.
    return IsRefusal(status) && !is_first ? absl::InternalError(status.message()) : status;
  }
  return absl::OkStatus();
}

absl::Status ReplicaUpdate::BeginAt(size_t replica) {
  absl::StatusOr<std::unique_ptr<WeightUpdate>> update =
      parts_.loops.loop(replica).BeginWeightUpdate(change_.of_replica());
  if (!update.ok()) return OfReplica(replica, update.status());
  updates_.emplace_back(replica, *std::move(update));
  return absl::OkStatus();
}

absl::Status ReplicaUpdate::Send(v1::WeightChunk chunk) {
  for (auto& [replica, update] : updates_) {
    if (absl::Status status = update->Send(chunk); !status.ok()) return OfReplica(replica, status);
  }
  return absl::OkStatus();
}

absl::Status ReplicaUpdate::status() const {
  for (const auto& [replica, update] : updates_) {
    if (absl::Status status = update->status(); !status.ok()) return OfReplica(replica, status);
  }
  return absl::OkStatus();
}

std::vector<v1::UpdatePort> ReplicaUpdate::ports() const {
  std::vector<v1::UpdatePort> ports;
  for (const auto& [replica, update] : updates_) {
    const std::vector<v1::UpdatePort> own = update->ports();
    if (own.empty()) return {};
    for (const v1::UpdatePort& port : own)
      ports.emplace_back(port).set_replica(static_cast<int32_t>(replica));
  }
  return ports;
}

absl::StatusOr<WeightsChange> ReplicaUpdate::Finish(const std::optional<ReceivedWeights>& expected) {
  std::vector<absl::StatusOr<WeightsChange>> changes(updates_.size(), WeightsChange());
  RunTogether(updates_.size(), [&](size_t i) { changes[i] = updates_[i].second->Finish(expected); });
  for (size_t i = 0; i < changes.size(); ++i) {
    if (!changes[i].ok()) return OfReplica(updates_[i].first, changes[i].status());
  }
  change_.NoteChanged(/*updates=*/true);
  return changes.front();
}

}  // namespace somnus
