#pragma once
// EndWaitingRequest over all replicas: unless the engine computes, every open request ends with an error, in
// the common queue and at the replicas.

#include "absl/status/status.h"
#include "coordinator/engine/lifecycle_requests.h"
#include "coordinator/replicas/commands/replica_command.h"

namespace somnus {

class ReplicaEndWaiting : public ReplicaCommand {
 public:
  ReplicaEndWaiting(const SetParts& parts, const EndWaitingRequest& request)
      : ReplicaCommand(parts, "end_waiting", /*ends_waits=*/false), error_(request.error) {}

  absl::Status Run();

 private:
  absl::StatusOr<TransitionReport> DoAt(EngineLoop* loop, size_t replica) override;

  const absl::Status error_;  // of the requests
};

}  // namespace somnus
