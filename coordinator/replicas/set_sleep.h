#pragma once
// Sleep and wake-up of all replicas of an engine, as Engine says. Each call waits for its turn, and is atomic
// over replicas: where a replica returns an error, the other replicas are brought back. A replica that fails
// for good meanwhile counts no more. Any thread may call; `parts` is borrowed for the call.

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/engine/engine.h"
#include "coordinator/replicas/set_parts.h"

namespace somnus {

absl::StatusOr<TransitionReport> SleepReplicas(const SetParts& parts, const SleepRequest& request);
absl::StatusOr<TransitionReport> WakeReplicas(const SetParts& parts, const std::vector<std::string>& tags,
                                              std::optional<bool> load_weights);
absl::StatusOr<TransitionReport> WakeReplicasForArrivals(const SetParts& parts);

}  // namespace somnus
