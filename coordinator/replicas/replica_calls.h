#pragma once
// One lifecycle call, made to all replicas at once: the results by replica, their sum, and the undoing.
//
// An object lives on the thread of the call of the whole engine, which has the turn; `parts` is borrowed. The
// calls to the replicas run on threads of their own, and Run returns when all have returned. Replicas that
// have failed are not called.

#include <cstddef>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "coordinator/engine/engine_loop.h"
#include "coordinator/replicas/set_parts.h"
#include "coordinator/residency/transition_report.h"

namespace somnus {

class ReplicaCalls {
 public:
  using Call = std::function<absl::StatusOr<TransitionReport>(EngineLoop*, size_t)>;

  explicit ReplicaCalls(const SetParts& parts);

  // Calls all replicas.
  void Run(const Call& call);
  // The report over all replicas, or the first error of a replica that has not failed. Where memory is
  // missing, the error says what all replicas lack.
  absl::StatusOr<TransitionReport> Sum() const;
  // Makes `call` to the replicas whose result is ok and that `choose` names. Returns `error`, the reason for
  // the undoing, and adds which replicas could not be brought back.
  absl::Status Undo(const absl::Status& error, const std::function<bool(size_t)>& choose, const Call& call);

 private:
  using Results = std::vector<absl::StatusOr<TransitionReport>>;  // by replica
  Results RunOn(const std::vector<bool>& chosen, const Call& call) const;

  const SetParts& parts_;
  Results results_;
};

}  // namespace somnus
