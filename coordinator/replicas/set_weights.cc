#include "coordinator/replicas/set_weights.h"

#include <algorithm>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/status_macros.h"
#include "base/threads.h"
#include "coordinator/engine/caller.h"
#include "coordinator/executor/memory_check.h"
#include "coordinator/replicas/set_call.h"

namespace somnus {
namespace {

// Runs `call` for all of `indices` at once.
void ForAll(const std::vector<size_t>& indices, const std::function<void(size_t)>& call) {
  RunTogether(indices.size(), [&](size_t i) { call(indices[i]); });
}

// The request that each replica gets, of one version; open requests have been settled.
WeightsRequest OfEveryReplica(const ReplicaLoops& loops, const WeightsRequest& request) {
  WeightsRequest of_replica = request;
  of_replica.mode = SleepMode::kKeep;
  if (request.version != 0) return of_replica;
  for (size_t i = 0; i < loops.size(); ++i)
    of_replica.version = std::max(of_replica.version, loops.loop(i).weights().version + 1);
  return of_replica;
}

// The replicas that have not failed; an error where there are none. The first replica decides whether the
// other replicas are asked, so replicas whose recovery may fail yet come last.
absl::StatusOr<std::vector<size_t>> LiveReplicas(const ReplicaLoops& loops) {
  std::vector<size_t> live, recovering;
  for (size_t i = 0; i < loops.size(); ++i) {
    const EngineState state = loops.state(i);
    if (state == EngineState::kFailed) continue;
    (state == EngineState::kRecovering ? recovering : live).push_back(i);
  }
  live.insert(live.end(), recovering.begin(), recovering.end());
  if (live.empty()) return absl::FailedPreconditionError("the engine has failed");
  return live;
}

// Nothing may be served from the weights that the replica has: an update that is given up at once makes the
// weights stale.
void MakeStale(const SetParts& parts, size_t replica) {
  const auto update = parts.loops.loop(replica).BeginWeightUpdate({.mode = SleepMode::kKeep});
  if (update.ok()) return;
  LogError("{}replica {} has kept the weights from which nothing should be served: {}",
           parts.options.log_name, replica, std::string(update.status().message()));
}

// The weights of all replicas have changed, by a call that began at `began`.
void NoteWeights(const SetParts& parts, bool updates, MonotonicTime began) {
  parts.queue.NoteCachesEmpty();
  if (parts.observer == nullptr) return;
  const Weights weights = parts.loops.loop(0).weights();
  parts.observer->OnWeightsChanged({.updates = updates,
                                    .duration = parts.options.monotonic_now() - began,
                                    .version = weights.version,
                                    .source = weights.source()});
}

// An update of all replicas. It has the turn of the call that began it.
class UpdateOfReplicas : public WeightUpdate {
 public:
  // `began` is when the call came.
  UpdateOfReplicas(const SetParts& parts, std::unique_ptr<CallTurn> turn, std::unique_ptr<CallScope> scope,
                   MonotonicTime began)
      : parts_(parts), turn_(std::move(turn)), scope_(std::move(scope)), began_(began) {}

  absl::Status Begin(size_t replica, const WeightsRequest& request) {
    absl::StatusOr<std::unique_ptr<WeightUpdate>> update =
        parts_.loops.loop(replica).BeginWeightUpdate(request);
    if (!update.ok()) return OfReplica(replica, update.status());
    updates_.emplace_back(replica, *std::move(update));
    return absl::OkStatus();
  }
  absl::Status Send(v1::WeightChunk chunk) override {
    for (auto& [replica, update] : updates_) {
      if (absl::Status status = update->Send(chunk); !status.ok()) return OfReplica(replica, status);
    }
    return absl::OkStatus();
  }
  absl::Status status() const override {
    for (const auto& [replica, update] : updates_) {
      if (absl::Status status = update->status(); !status.ok()) return OfReplica(replica, status);
    }
    return absl::OkStatus();
  }
  std::vector<v1::UpdatePort> ports() const override {
    std::vector<v1::UpdatePort> ports;
    for (const auto& [replica, update] : updates_) {
      const std::vector<v1::UpdatePort> own = update->ports();
      if (own.empty()) return {};
      for (const v1::UpdatePort& port : own)
        ports.emplace_back(port).set_replica(static_cast<int32_t>(replica));
    }
    return ports;
  }
  absl::StatusOr<WeightsChange> Finish(const std::optional<ReceivedWeights>& expected) override {
    std::vector<absl::StatusOr<WeightsChange>> changes(updates_.size(), WeightsChange());
    RunTogether(updates_.size(), [&](size_t i) { changes[i] = updates_[i].second->Finish(expected); });
    for (size_t i = 0; i < changes.size(); ++i) {
      if (!changes[i].ok()) return OfReplica(updates_[i].first, changes[i].status());
    }
    NoteWeights(parts_, /*updates=*/true, began_);
    return changes.front();
  }

 private:
  // Members are destroyed in reverse: the updates first.
  const SetParts& parts_;
  const std::unique_ptr<CallTurn> turn_;
  const std::unique_ptr<CallScope> scope_;
  const MonotonicTime began_;
  std::vector<std::pair<size_t, std::unique_ptr<WeightUpdate>>> updates_;  // by replica
};

// Reloads `first`, and then `others` at once.
absl::StatusOr<WeightsChange> ReloadInOrder(const SetParts& parts, size_t first,
                                            const std::vector<size_t>& others,
                                            const WeightsRequest& request) {
  const absl::StatusOr<WeightsChange> change = parts.loops.loop(first).ReloadWeights(request);
  if (!change.ok()) return OfReplica(first, change.status());
  std::vector<absl::Status> errors(parts.loops.size());
  ForAll(others, [&](size_t i) {
    const absl::StatusOr<WeightsChange> own = parts.loops.loop(i).ReloadWeights(request);
    errors[i] = own.status();
    if (own.ok() && own->fingerprint != change->fingerprint)
      errors[i] = absl::DataLossError("it has read other files than the others");
    if (IsRefusal(errors[i]) || absl::IsDataLoss(errors[i])) MakeStale(parts, i);
  });
  for (const size_t i : others) {
    if (errors[i].ok() || parts.loops.HasFailed(i)) continue;
    return absl::InternalError(OfReplica(i, errors[i]).message());
  }
  return change;
}

}  // namespace

absl::StatusOr<WeightsChange> ReloadReplicas(const SetParts& parts, const WeightsRequest& request) {
  const CallTurn turn(parts, "reload_weights", request.mode != SleepMode::kWait);
  RETURN_IF_ERROR(turn.Check());
  CallScope scope(parts, SetCall::kPause);
  RETURN_IF_ERROR(scope.Settle(request.mode));
  RETURN_IF_ERROR(CheckCaller());
  const CallerScope begun(BegunCaller());
  scope.Set(SetCall::kWakeUp);
  const MonotonicTime began = parts.options.monotonic_now();
  const WeightsRequest of_replica = OfEveryReplica(parts.loops, request);
  ASSIGN_OR_RETURN(std::vector<size_t> others, LiveReplicas(parts.loops));
  const size_t first = others.front();
  others.erase(others.begin());
  absl::StatusOr<WeightsChange> change = ReloadInOrder(parts, first, others, of_replica);
  if (change.ok()) NoteWeights(parts, /*updates=*/false, began);
  return change;
}

absl::StatusOr<std::unique_ptr<WeightUpdate>> BeginUpdateOfReplicas(const SetParts& parts,
                                                                    const WeightsRequest& request) {
  auto turn = std::make_unique<CallTurn>(parts, "update_weights", request.mode != SleepMode::kWait);
  RETURN_IF_ERROR(turn->Check());
  auto scope = std::make_unique<CallScope>(parts, SetCall::kPause);
  RETURN_IF_ERROR(scope->Settle(request.mode));
  RETURN_IF_ERROR(CheckCaller());
  const CallerScope begun(BegunCaller());
  scope->Set(SetCall::kWakeUp);
  const WeightsRequest of_replica = OfEveryReplica(parts.loops, request);
  ASSIGN_OR_RETURN(const std::vector<size_t> live, LiveReplicas(parts.loops));
  auto update = std::make_unique<UpdateOfReplicas>(parts, std::move(turn), std::move(scope),
                                                   parts.options.monotonic_now());
  for (const size_t replica : live) {
    const absl::Status status = update->Begin(replica, of_replica);
    const bool is_first = replica == live.front();
    if (status.ok() || (!is_first && parts.loops.HasFailed(replica))) continue;
    // An earlier replica has already changed its weights, so a refusal now is an internal error.
    return IsRefusal(status) && !is_first ? absl::InternalError(status.message()) : status;
  }
  return update;
}

}  // namespace somnus
