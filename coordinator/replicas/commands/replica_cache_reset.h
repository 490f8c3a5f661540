#pragma once
// The end of the prefix caches of all replicas (ResetPrefixCacheRequest). The router forgets, too, what the
// replicas had cached.

#include "absl/status/status.h"
#include "coordinator/engine/lifecycle_requests.h"
#include "coordinator/replicas/commands/replica_command.h"

namespace somnus {

class ReplicaCacheReset : public ReplicaCommand {
 public:
  ReplicaCacheReset(const SetParts& parts, const ResetPrefixCacheRequest& request)
      : ReplicaCommand(parts, "reset_prefix_cache", /*ends_waits=*/false), request_(request) {}

  absl::Status Run();

 private:
  absl::StatusOr<TransitionReport> DoAt(EngineLoop* loop, size_t replica) override;

  const ResetPrefixCacheRequest request_;
};

}  // namespace somnus
