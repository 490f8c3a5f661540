#pragma once
// The common part of a sleep and a wake-up of all replicas: which memory was mapped before, for the undoing,
// and the event for the observer.

#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/replicas/commands/replica_command.h"
#include "coordinator/residency/residency.h"

namespace somnus {

class ReplicaTransition : public ReplicaCommand {
 protected:
  using ReplicaCommand::ReplicaCommand;

  // RunOnAll from the residencies of this moment. Tells the observer, if the transition has changed anything.
  absl::StatusOr<TransitionReport> RunTransition(bool wakes);
  // The residency of a replica before RunTransition.
  const Residency& before(size_t replica) const { return before_[replica]; }
  // The engine was paused before RunTransition.
  bool was_paused() const { return was_paused_; }

 private:
  std::vector<Residency> before_;  // by replica
  bool was_paused_ = false;
};

}  // namespace somnus
