#pragma once
// Changes of the weights of all replicas of an engine, as Engine says: after a change that went well all
// replicas have the same version.
//
// In a reload one replica changes first, and the other replicas follow at once where that went well. After an
// error that has changed something, replicas with the new version serve the new version, and the weights of
// the other replicas are stale; the error names the first replica that had an error.
//
// Any thread may call; `parts` is borrowed for the call, and for the life of the update, which has the turn
// all its life.

#include <memory>

#include "absl/status/statusor.h"
#include "coordinator/engine/engine.h"
#include "coordinator/replicas/set_parts.h"

namespace somnus {

absl::StatusOr<WeightsChange> ReloadReplicas(const SetParts& parts, const WeightsRequest& request);
absl::StatusOr<std::unique_ptr<WeightUpdate>> BeginUpdateOfReplicas(const SetParts& parts,
                                                                    const WeightsRequest& request);

}  // namespace somnus
