#pragma once
// A reload of the weights of all replicas (ReloadWeightsRequest). One replica reloads first, and the other
// replicas follow at once where that went well. After an error that has changed something, replicas with the
// new version serve the new version, and the weights of the other replicas are stale; the error names the
// first replica that had an error.

#include <cstddef>
#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/engine/lifecycle_requests.h"
#include "coordinator/engine/weight_update.h"
#include "coordinator/replicas/commands/replica_weights.h"

namespace somnus {

class ReplicaReload {
 public:
  ReplicaReload(const SetParts& parts, const ReloadWeightsRequest& request)
      : parts_(parts), change_(parts, "reload_weights", request.weights) {}

  absl::StatusOr<WeightsChange> Run();

 private:
  absl::StatusOr<WeightsChange> ReloadInOrder();
  // Reloads the replicas behind the first. `files`: the fingerprint of what the first has read. The results
  // are by replica.
  std::vector<absl::Status> ReloadOthers(const std::string& files);
  // Nothing may be served from the weights that the replica has: an update that is given up at once makes the
  // weights stale.
  void MakeStale(size_t replica);

  const SetParts& parts_;
  ReplicaWeights change_;
};

}  // namespace somnus
