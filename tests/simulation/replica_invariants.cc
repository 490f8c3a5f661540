#include "tests/simulation/replica_invariants.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace somnus::simulation {
namespace {

bool IsAtRest(EngineState state) {
  return state == EngineState::kAwake || state == EngineState::kAsleep || state == EngineState::kPaused;
}

bool HasStaleWeights(const EngineStats& stats) {
  return stats.needs_weights || stats.residency.weights_stale();
}

bool IsChangeOfWeights(const std::string& what) { return what == "Reload" || what == "Update"; }

// The states of all replicas, for a violation.
std::string Describe(const EngineStats& stats) {
  std::string states;
  for (const ReplicaStats& replica : stats.replicas)
    absl::StrAppend(&states, states.empty() ? "" : ", ", EngineStateName(replica.state));
  return states;
}

}  // namespace

void ReplicaInvariants::SetEngine(const Engine* engine) {
  engine_ = engine;
  differ_ = true;
  if (IsWhole(/*may_sleep=*/false)) NoteWhole();
}

void ReplicaInvariants::NoteWhole() {
  differ_ = false;
  num_damaged_when_whole_ = disk_.num_damaged();
}

// A call that fails changes nothing, except where the error says that some replica could not be brought back,
// where damaged memory was given up, and where weights were being replaced.
void ReplicaInvariants::NoteCall(const std::string& what, const absl::Status& status) {
  if (status.ok()) {
    if (what == "WakeUp of all" || IsWhole(/*may_sleep=*/false)) NoteWhole();
    return;
  }
  differ_ |= IsChangeOfWeights(what) || what == "Roll" || absl::IsDataLoss(status) ||
             absl::StrContains(status.message(), "could not be brought back");
}

// A sleep that one replica lacks the room for is undone at the others, and damage of a spill file prevents
// it.
bool ReplicaInvariants::may_differ() const {
  return differ_ || disk_.num_damaged() > num_damaged_when_whole_ || HasStaleWeights(engine_->Stats());
}

void ReplicaInvariants::CheckSame() const {
  world_.LookAround([this] { CheckSameNow(); });
}

// An engine that sleeps by itself may call replicas at any time.
void ReplicaInvariants::CheckSameNow() const {
  const EngineStats stats = engine_->Stats();
  if (may_differ() || !stats.lifecycle_call.name.empty()) return;
  const ReplicaStats* first = nullptr;
  for (const ReplicaStats& replica : stats.replicas) {
    if (!IsAtRest(replica.state)) continue;
    if (first == nullptr) first = &replica;
    if (replica.state != first->state)
      return world_.Violate(absl::StrCat("the replicas are in different states: ", Describe(stats)));
  }
}

// A replica whose memory came back damaged falls asleep by itself. At a change of the weights each replica
// falls asleep first, and wakes up with the new weights.
void ReplicaInvariants::CheckTurns() const {
  if (engine_ == nullptr || faults_.damaged() || changes_weights_()) return;
  const EngineStats stats = engine_->Stats();
  const auto one_is = [&](EngineState state) {
    return std::any_of(stats.replicas.begin(), stats.replicas.end(),
                       [&](const ReplicaStats& replica) { return replica.state == state; });
  };
  const bool one_sleeps = one_is(EngineState::kFallingAsleep), one_wakes = one_is(EngineState::kWaking);
  const std::string& call = stats.lifecycle_call.name;
  const bool is_other_call = (one_sleeps || one_wakes) && call != "sleep" && call != "wake_up";
  if ((one_sleeps && one_wakes) || is_other_call)
    world_.Violate(
        absl::StrCat("two calls are under way at once: ", call, "; the replicas are ", Describe(stats)));
}

bool ReplicaInvariants::IsWhole(bool may_sleep) const {
  const EngineStats stats = engine_->Stats();
  if (HasStaleWeights(stats)) return false;
  const auto all_are = [&](EngineState state) {
    return std::all_of(stats.replicas.begin(), stats.replicas.end(),
                       [&](const ReplicaStats& replica) { return replica.state == state; });
  };
  return all_are(EngineState::kAwake) || (may_sleep && all_are(EngineState::kAsleep));
}

void ReplicaInvariants::CheckQuiet(const std::vector<std::shared_ptr<Client>>& clients) const {
  const EngineStats stats = engine_->Stats();
  for (const ReplicaStats& replica : stats.replicas) {
    if (replica.num_running + replica.num_waiting > 0) world_.Violate("a replica has requests left");
  }
  int64_t num_moves = 0;
  for (const std::shared_ptr<Client>& client : clients) num_moves += client->num_moves();
  if (num_moves > stats.num_moved)
    world_.Violate(absl::StrCat("requests went on at another replica ", num_moves, " times, and ",
                                stats.num_moved, " were handed over"));
}

void ReplicaInvariants::OnStep(const StepEvent&) {
  world_.LookAround([this] { CheckTurns(); });
}

void ReplicaInvariants::OnRecovered(absl::Duration) {
  world_.LookAround([this] { CheckTurns(); });
}

}  // namespace somnus::simulation
