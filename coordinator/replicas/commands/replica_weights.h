#pragma once
// A change of the weights of all replicas, from its turn to the event for the observer: the common part of a
// reload and an update. After a change that went well all replicas have the same version.
//
// The turn and the state that the engine shows meanwhile last as long as the object. For one thread at a
// time; another thread than the one that made the object may destroy it. `parts` is borrowed.

#include <cstddef>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "base/monotonic.h"
#include "coordinator/engine/lifecycle_requests.h"
#include "coordinator/replicas/set_call.h"
#include "coordinator/replicas/set_parts.h"

namespace somnus {

class ReplicaWeights {
 public:
  // Waits for the turn. `name`: as CallTurn.
  ReplicaWeights(const SetParts& parts, const char* name, const WeightsRequest& request);

  // Settles open requests. An error: nothing was changed, or no replica is left that has not failed.
  absl::Status Begin();
  // Once begun: what each replica gets, with one version, and with nothing to settle any more.
  const WeightsRequest& of_replica() const { return of_replica_; }
  // Once begun: the replicas that have not failed, in the order in which they are asked. The first replica
  // decides whether the others are asked, so replicas whose recovery may fail yet come last.
  const std::vector<size_t>& live() const { return live_; }
  // The weights of all replicas have changed. `updates`: by an update.
  void NoteChanged(bool updates);

 private:
  absl::Status ChooseReplicas();
  // One replica's weights may sleep alone, as after a self-check that found damage. That replica would refuse
  // the change when others have new weights already.
  absl::Status CheckWeightsAreMapped() const;
  void ChooseVersion();

  const SetParts& parts_;
  // Members are destroyed in reverse: the scope before the turn.
  const CallTurn turn_;
  std::optional<CallScope> scope_;
  WeightsRequest of_replica_;
  std::vector<size_t> live_;
  MonotonicTime began_;
};

}  // namespace somnus
