#include "coordinator/replicas/replica_loops.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/threads.h"

namespace somnus {

// Tells the set of a loop's events, and passes the events on.
class ReplicaLoops::Observer : public PassingObserver {
 public:
  Observer(ReplicaEvents* events, int32_t replica, EngineObserver* next)
      : PassingObserver(next), events_(events), replica_(replica) {}

  void OnRequestScheduled(const EngineRequest& request) override {
    events_->OnRequestScheduled(request);
    PassingObserver::OnRequestScheduled(request);
  }
  void OnStep(const StepEvent& event) override {
    events_->OnReplicaStep();
    StepEvent of_replica = event;
    of_replica.replica = replica_;
    PassingObserver::OnStep(of_replica);
  }
  // The set reports the transitions of all replicas, and changes of all weights, as one event.
  void OnTransition(const TransitionEvent& /*event*/) override {}
  void OnWeightsChanged(const WeightsEvent& /*event*/) override {}
  void OnRequestFinished(const EngineRequest& request, const FinishedRequest& end) override {
    events_->OnRequestEnded(request);
    PassingObserver::OnRequestFinished(request, end);
  }

 private:
  ReplicaEvents* const events_;
  const int32_t replica_;
};

ReplicaLoops::ReplicaLoops() = default;
ReplicaLoops::~ReplicaLoops() = default;

void ReplicaLoops::Start(std::vector<ReplicaOptions> replicas, EngineObserver* observer,
                         ReplicaEvents* events) {
  replicas_.resize(replicas.size());
  for (size_t i = 0; i < replicas.size(); ++i) {
    EngineOptions options = std::move(replicas[i].engine);
    absl::StrAppend(&options.log_name, "replica ", i, ": ");
    options.data_parallel_rank = static_cast<int32_t>(i);
    options.hand_over = [events](std::vector<EngineRequest> requests) {
      events->OnHandOver(std::move(requests));
    };
    replicas_[i].observer = std::make_unique<Observer>(events, static_cast<int32_t>(i), observer);
    replicas_[i].loop =
        std::make_unique<EngineLoop>(std::move(options), replicas[i].executor, replicas_[i].observer.get());
  }
  // Only when all loops exist: the set asks all loops at each change of a state.
  for (size_t i = 0; i < replicas_.size(); ++i)
    replicas_[i].loop->OnStateChange([events, i] { events->OnReplicaStateChange(i); });
}

void ReplicaLoops::Stop() {
  RunTogether(replicas_.size(), [&](size_t i) { replicas_[i].loop->DrainAndStop(absl::ZeroDuration()); });
}

void ReplicaLoops::EndReports() {
  for (const Replica& replica : replicas_) replica.loop->OnStateChange(nullptr);
}

std::vector<EngineState> ReplicaLoops::States() const {
  std::vector<EngineState> states;
  for (const Replica& replica : replicas_) states.push_back(replica.loop->state());
  return states;
}

std::vector<EngineStats> ReplicaLoops::Stats() const {
  std::vector<EngineStats> stats;
  for (const Replica& replica : replicas_) stats.push_back(replica.loop->Stats());
  return stats;
}

EngineViews ReplicaLoops::View() const {
  EngineViews views;
  for (const Replica& replica : replicas_) {
    for (std::shared_ptr<const EngineView>& view : replica.loop->View()) views.push_back(std::move(view));
  }
  return views;
}

std::vector<Residency> ReplicaLoops::Residencies() const {
  std::vector<Residency> residencies;
  for (const Replica& replica : replicas_) residencies.push_back(replica.loop->Stats().residency);
  return residencies;
}

bool ReplicaLoops::GaveUpStaleWeights() const {
  bool gave_up = false;
  for (const Replica& replica : replicas_) {
    if (replica.loop->state() == EngineState::kFailed) continue;
    if (!replica.loop->gave_up_stale_weights()) return false;
    gave_up = true;
  }
  return gave_up;
}

bool ReplicaLoops::AnotherServes(size_t replica) const {
  for (size_t i = 0; i < size(); ++i) {
    if (i != replica && IsAwake(i)) return true;
  }
  return false;
}

bool ReplicaLoops::NobodyServes() const {
  return std::all_of(replicas_.begin(), replicas_.end(), [](const Replica& replica) {
    const EngineState state = replica.loop->state();
    return state == EngineState::kAsleep || state == EngineState::kPaused || state == EngineState::kFailed;
  });
}

bool ReplicaLoops::IsAnyRecovering() const {
  return std::any_of(replicas_.begin(), replicas_.end(), [](const Replica& replica) {
    return replica.loop->state() == EngineState::kRecovering;
  });
}

std::string ReplicaLoops::Errors() const {
  std::string errors;
  for (size_t i = 0; i < size(); ++i) {
    const std::string error = loop(i).Stats().error;
    if (!error.empty()) absl::StrAppend(&errors, errors.empty() ? "" : "; ", "replica ", i, ": ", error);
  }
  return errors;
}

Weights ReplicaLoops::WeightsBeside(size_t replica) const {
  for (size_t i = 0; i < size(); ++i) {
    if (i != replica && IsAwake(i)) return loop(i).weights();
  }
  return loop(replica).weights();
}

int64_t ReplicaLoops::NumPreempted() const {
  int64_t count = 0;
  for (const Replica& replica : replicas_) count += replica.loop->backlog().num_preempted;
  return count;
}

int64_t ReplicaLoops::NumSteps() const {
  int64_t steps = 0;
  for (const Replica& replica : replicas_) steps = std::max(steps, replica.loop->backlog().num_steps);
  return steps;
}

}  // namespace somnus
