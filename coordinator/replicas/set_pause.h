#pragma once
// Pause, resume and the calls for the KV caches of all replicas of an engine, as Engine says. Each call waits
// for its turn; Pause and ResizeKvCache are atomic over replicas. Any thread may call; `parts` is borrowed
// for the call.

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "coordinator/engine/engine.h"
#include "coordinator/replicas/set_parts.h"

namespace somnus {

absl::Status PauseReplicas(const SetParts& parts, const PauseRequest& request);
absl::Status ResumeReplicas(const SetParts& parts);
void EndWaitingOfReplicas(const SetParts& parts, const absl::Status& error);
absl::StatusOr<int32_t> ResizeKvCaches(const SetParts& parts, int32_t total_blocks);
absl::Status ResetPrefixCaches(const SetParts& parts, bool preempt_running);

}  // namespace somnus
