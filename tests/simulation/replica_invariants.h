#pragma once
// The invariants between the replicas of a simulated engine: lifecycle calls are done in turn, after each
// call all replicas are in the same state, and a request moves only when a replica hands the request over.

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "coordinator/engine/engine.h"
#include "coordinator/engine/engine_observer.h"
#include "tests/simulation/clients.h"
#include "tests/simulation/faults.h"
#include "tests/simulation/site.h"

namespace somnus::simulation {

class ReplicaInvariants : public EngineObserver {
 public:
  // `changes_weights` says whether a change of the weights is under way.
  ReplicaInvariants(Site* site, const Faults* faults, std::function<bool()> changes_weights)
      : world_(site->world),
        disk_(site->disk),
        faults_(*faults),
        changes_weights_(std::move(changes_weights)) {}

  // The engine with this observer.
  void SetEngine(const Engine* engine);
  // To be called after every lifecycle call, with the call's name and result.
  void NoteCall(const std::string& what, const absl::Status& status);
  // Whether a call that failed, a loss, an earlier coordinator, or damage of the disk since all replicas were
  // last awake together has left the replicas in different states, or with different weights.
  bool may_differ() const;
  // All replicas are in the same state, unless they may differ or a lifecycle call is under way.
  void CheckSame() const;
  // No replica falls asleep while another replica wakes up, and replicas do so in a sleep or a wake-up alone.
  // To be called at any time.
  void CheckTurns() const;
  // Every replica serves, or, where `may_sleep`, every replica sleeps; nothing is stale.
  bool IsWhole(bool may_sleep) const;
  // All requests have ended: no replica has any, and no request has moved without a hand-over.
  void CheckQuiet(const std::vector<std::shared_ptr<Client>>& clients) const;

  void OnStep(const StepEvent& event) override;
  void OnRecovered(absl::Duration duration) override;
  void OnRequestFinished(const EngineRequest&, const FinishedRequest&) override {}

 private:
  void CheckSameNow() const;
  // Every replica serves, with weights that were read whole.
  void NoteWhole();

  World& world_;
  const Disk& disk_;
  const Faults& faults_;
  const std::function<bool()> changes_weights_;
  const Engine* engine_ = nullptr;
  bool differ_ = false;             // until all replicas are awake
  int num_damaged_when_whole_ = 0;  // Disk::num_damaged
};

}  // namespace somnus::simulation
