#pragma once
// A roll: the workers of one replica after the other are restarted, while the other replicas serve.
//
// Failed replicas come first, so that as many replicas as possible serve while the others are restarted; a
// failed replica is revived, with new workers. While the roll waits for a replica's open requests, further
// lifecycle calls have their turns. The roll ends at the first replica that does not come back.
//
// ReplicaRoll owns whether a roll is under way. Thread safe; a roll blocks its caller. `parts` and `revival`
// are borrowed.

#include <atomic>
#include <cstddef>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "coordinator/replicas/replica_revival.h"
#include "coordinator/replicas/set_call.h"
#include "coordinator/replicas/set_parts.h"

namespace somnus {

class ReplicaRoll {
 public:
  ReplicaRoll(const SetParts& parts, ReplicaRevival* revival) : parts_(parts), revival_(*revival) {}
  ReplicaRoll(const ReplicaRoll&) = delete;

  // As RollRequest says.
  absl::Status Run(absl::Duration grace);

 private:
  absl::Status RollAll(absl::Duration grace, CallTurn* turn);
  absl::Status RollOne(size_t replica, absl::Duration grace, CallTurn* turn);
  // Ends when the replica, which gets no request any more, has no open request, or after `grace`. An error:
  // the replica must not be restarted now.
  absl::Status Empty(size_t replica, absl::Duration grace, CallTurn* turn);
  absl::Status MayEmpty(size_t replica) const;

  const SetParts& parts_;
  ReplicaRevival& revival_;
  std::atomic<bool> under_way_{false};
};

}  // namespace somnus
