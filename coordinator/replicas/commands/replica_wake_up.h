#pragma once
// A wake-up of all replicas, for an operator (WakeUpRequest) or for requests that wait
// (WakeForArrivalsRequest). Before any replica maps memory, the memory that all replicas of a host need
// together is compared with what there is. Where a replica cannot be woken, the others sleep again.

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "coordinator/engine/lifecycle_requests.h"
#include "coordinator/replicas/commands/replica_transition.h"

namespace somnus {

class ReplicaWakeUp : public ReplicaTransition {
 public:
  ReplicaWakeUp(const SetParts& parts, const WakeUpRequest& request)
      : ReplicaTransition(parts, "wake_up", /*ends_waits=*/true), request_(request), for_arrivals_(false) {}
  ReplicaWakeUp(const SetParts& parts, const WakeForArrivalsRequest& /*request*/)
      : ReplicaTransition(parts, "wake_up", /*ends_waits=*/false), for_arrivals_(true) {}

  absl::StatusOr<TransitionReport> Run();

 private:
  absl::StatusOr<TransitionReport> DoAt(EngineLoop* loop, size_t replica) override;
  bool Undoes(size_t replica) const override { return !before(replica).ToWake(request_.tags).empty(); }
  absl::StatusOr<TransitionReport> UndoAt(EngineLoop* loop, size_t replica) override;

  // ResourceExhausted: the memory does not suffice for what sleeps of the tags on all replicas together. Each
  // replica checks the memory of its own ranks, and the replicas of one host might all find enough memory. A
  // replica that does not say what the wake-up takes finds out by itself.
  absl::Status CheckMemory() const;
  // Where a replica serves, the wake-up has ended the engine's pause. A replica that lacks its weights is not
  // awake yet, and must not stay paused when a reload brings the weights.
  void EndPause() const;

  const WakeUpRequest request_;  // for arrivals: all tags
  const bool for_arrivals_;
};

}  // namespace somnus
