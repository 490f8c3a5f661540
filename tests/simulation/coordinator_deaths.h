#pragma once
// When the coordinator of a simulated cluster is killed: at any time, while the engine sleeps, or in the
// middle of a transition.

#include <optional>

#include "absl/time/time.h"
#include "coordinator/residency/engine_state.h"
#include "tests/simulation/faults.h"
#include "tests/simulation/site.h"

namespace somnus::simulation {

class CoordinatorDeaths {
 public:
  // There are at most `num_left`; each counts as a fault.
  CoordinatorDeaths(Site* site, Faults* faults, int num_left)
      : site_(*site), faults_(*faults), num_left_(num_left) {}

  // Draws the death of the process that serves from now on, if a death is left: within `span`, or soon after
  // the engine is next in a drawn state.
  void Plan(int coordinator, absl::Duration span);
  // To be called within every change of the engine's state.
  void OnState(EngineState state);
  // None dies any more.
  void End() { num_left_ = 0; }

 private:
  void KillAfter(absl::Duration delay);

  Site& site_;
  Faults& faults_;
  int num_left_;
  int coordinator_ = 0;
  std::optional<EngineState> state_;  // in which the process dies
};

}  // namespace somnus::simulation
