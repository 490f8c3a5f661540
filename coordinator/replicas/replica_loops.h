#pragma once
// The replicas of an engine: their loops, and questions about all loops.
//
// ReplicaLoops owns an EngineLoop for each replica, and the observer through which the loop reports to the
// set. The list is complete after Start and does not change afterwards. Thread safe: the answers come from
// what each loop publishes, so two answers may be of two moments.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "coordinator/engine/engine.h"
#include "coordinator/engine/engine_loop.h"
#include "coordinator/replicas/replica_options.h"

namespace somnus {

// The loops' reports to the set, each on the loop's own thread.
class ReplicaEvents {
 public:
  virtual ~ReplicaEvents() = default;
  virtual void OnReplicaStep() = 0;
  virtual void OnRequestScheduled(const EngineRequest& request) = 0;
  virtual void OnRequestEnded(const EngineRequest& request) = 0;
  // A replica gives up `requests`, with their progress, and never delivers for the requests again.
  virtual void OnHandOver(std::vector<EngineRequest> requests) = 0;
  virtual void OnReplicaStateChange(size_t replica) = 0;
};

class ReplicaLoops {
 public:
  ReplicaLoops();
  ~ReplicaLoops();
  ReplicaLoops(const ReplicaLoops&) = delete;

  // Starts a loop for each replica. `observer` gets the events of all loops but transitions and changes of
  // weights, which the set reports as one; null: nobody gets events. `events` and `observer` are borrowed.
  void Start(std::vector<ReplicaOptions> replicas, EngineObserver* observer, ReplicaEvents* events);
  // Ends all loops at once; open requests end.
  void Stop();
  // No state change is reported afterwards.
  void EndReports();

  size_t size() const { return replicas_.size(); }
  EngineLoop& loop(size_t replica) const { return *replicas_[replica].loop; }
  EngineState state(size_t replica) const { return loop(replica).state(); }
  bool IsAwake(size_t replica) const { return state(replica) == EngineState::kAwake; }
  bool HasFailed(size_t replica) const { return state(replica) == EngineState::kFailed; }

  std::vector<EngineState> States() const;
  std::vector<EngineStats> Stats() const;
  EngineViews View() const;
  std::vector<Residency> Residencies() const;
  // Every replica that has not failed refuses requests because of stale weights, and there is such a replica.
  bool GaveUpStaleWeights() const;
  // A replica other than `replica` is awake.
  bool AnotherServes(size_t replica) const;
  // Every replica is asleep, paused or failed: no replica will serve by itself.
  bool NobodyServes() const;
  bool IsAnyRecovering() const;
  // Why the replicas have failed.
  std::string Errors() const;
  // The weights of an awake replica other than `replica`; if there is none, the weights of `replica`.
  Weights WeightsBeside(size_t replica) const;
  // Requests at all replicas that wait again.
  int64_t NumPreempted() const;
  // Steps of the replica that has made most steps.
  int64_t NumSteps() const;

 private:
  class Observer;
  struct Replica {
    std::unique_ptr<Observer> observer;
    std::unique_ptr<EngineLoop> loop;
  };
  std::vector<Replica> replicas_;
};

}  // namespace somnus
