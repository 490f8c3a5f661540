#pragma once
// An update of the weights of all replicas (UpdateWeightsRequest): every chunk goes to every replica. The
// update has the turn of its request as long as the update lives. After an error that has changed something,
// the weights of all replicas that took part are stale, but for replicas that have finished; the error names
// the first replica that had an error.
//
// Thread safety: as WeightUpdate says; `parts` is borrowed for the update's life.

#include <cstddef>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "coordinator/engine/lifecycle_requests.h"
#include "coordinator/engine/weight_update.h"
#include "coordinator/replicas/commands/replica_weights.h"

namespace somnus {

class ReplicaUpdate : public WeightUpdate {
 public:
  // An update that has begun at every replica that has not failed.
  static UpdateWeightsRequest::Result Begin(const SetParts& parts, const UpdateWeightsRequest& request);

  absl::Status Send(v1::WeightChunk chunk) override;
  absl::Status status() const override;
  std::vector<v1::UpdatePort> ports() const override;
  absl::StatusOr<WeightsChange> Finish(const std::optional<ReceivedWeights>& expected) override;

 private:
  ReplicaUpdate(const SetParts& parts, const UpdateWeightsRequest& request)
      : parts_(parts), change_(parts, "update_weights", request.weights) {}

  absl::Status BeginAll();
  absl::Status BeginAt(size_t replica);

  // Members are destroyed in reverse: the updates before the turn ends.
  const SetParts& parts_;
  ReplicaWeights change_;
  std::vector<std::pair<size_t, std::unique_ptr<WeightUpdate>>> updates_;  // by replica
};

}  // namespace somnus
