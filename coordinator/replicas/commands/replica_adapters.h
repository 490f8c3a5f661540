#pragma once
// The adapters that all replicas hold (SetAdaptersRequest). Where a replica cannot load an adapter, the other
// replicas get back what they held.

#include <vector>

#include "absl/status/status.h"
#include "coordinator/engine/lifecycle_requests.h"
#include "coordinator/replicas/commands/replica_command.h"

namespace somnus {

class ReplicaAdapters : public ReplicaCommand {
 public:
  // `held`: the adapters of all replicas; borrowed, and changed by a Run that succeeds.
  ReplicaAdapters(const SetParts& parts, const SetAdaptersRequest& request, std::vector<HeldAdapter>* held)
      : ReplicaCommand(parts, "a change of the adapters", /*ends_waits=*/false),
        request_(request),
        held_(*held) {}

  // FailedPrecondition: a replica has failed, and would come back without the adapters.
  absl::StatusOr<TransitionReport> Run();

 private:
  absl::StatusOr<TransitionReport> DoAt(EngineLoop* loop, size_t replica) override;
  bool Undoes(size_t /*replica*/) const override { return true; }
  absl::StatusOr<TransitionReport> UndoAt(EngineLoop* loop, size_t replica) override;

  const SetAdaptersRequest request_;
  std::vector<HeldAdapter>& held_;
};

}  // namespace somnus
