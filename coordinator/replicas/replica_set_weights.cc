// ReplicaSet's part for changes of the weights: after one that went well all replicas have the same version.

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "base/status_macros.h"
#include "base/threads.h"
#include "coordinator/engine/caller.h"
#include "coordinator/executor/memory_check.h"
#include "coordinator/replicas/call_scope.h"
#include "coordinator/replicas/replica_set.h"

namespace somnus {
namespace {

// Runs `call` for all of `indices` at once.
void ForAll(const std::vector<size_t>& indices, const std::function<void(size_t)>& call) {
  RunTogether(indices.size(), [&](size_t i) { call(indices[i]); });
}

}  // namespace

// Holds the lifecycle lock as long as it lives.
class ReplicaSet::Update : public WeightUpdate {
 public:
  // `began` is when the call came.
  Update(ReplicaSet* set, std::unique_ptr<LifecycleLock> lifecycle, std::unique_ptr<CallScope> scope,
         MonotonicTime began)
      : set_(set), lifecycle_(std::move(lifecycle)), scope_(std::move(scope)), began_(began) {}

  absl::Status Begin(size_t replica, const WeightsRequest& request) {
    absl::StatusOr<std::unique_ptr<WeightUpdate>> update =
        set_->replicas_[replica].loop->BeginWeightUpdate(request);
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
    std::vector<size_t> all;
    for (size_t i = 0; i < updates_.size(); ++i) all.push_back(i);
    ForAll(all, [&](size_t i) { changes[i] = updates_[i].second->Finish(expected); });
    for (size_t i = 0; i < changes.size(); ++i) {
      if (!changes[i].ok()) return OfReplica(updates_[i].first, changes[i].status());
    }
    set_->NoteWeights(/*updates=*/true, began_);
    return changes.front();
  }

 private:
  // Members are destroyed in reverse: the updates first.
  ReplicaSet* const set_;
  const std::unique_ptr<LifecycleLock> lifecycle_;
  const std::unique_ptr<CallScope> scope_;
  const MonotonicTime began_;
  std::vector<std::pair<size_t, std::unique_ptr<WeightUpdate>>> updates_;
};

WeightsRequest ReplicaSet::OfEveryReplica(const WeightsRequest& request) const {
  WeightsRequest of_replica = request;
  of_replica.mode = SleepMode::kKeep;
  if (request.version != 0) return of_replica;
  for (const Replica& replica : replicas_)
    of_replica.version = std::max(of_replica.version, replica.loop->weights().version + 1);
  return of_replica;
}

absl::StatusOr<std::vector<size_t>> ReplicaSet::LiveReplicas() const {
  std::vector<size_t> live, recovering;
  for (size_t i = 0; i < replicas_.size(); ++i) {
    const EngineState state = replicas_[i].loop->state();
    if (state == EngineState::kFailed) continue;
    (state == EngineState::kRecovering ? recovering : live).push_back(i);
  }
  live.insert(live.end(), recovering.begin(), recovering.end());
  if (live.empty()) return absl::FailedPreconditionError("the engine has failed");
  return live;
}

Weights ReplicaSet::WeightsOfOthers(size_t replica) const {
  for (size_t i = 0; i < replicas_.size(); ++i) {
    if (i != replica && replicas_[i].loop->state() == EngineState::kAwake)
      return replicas_[i].loop->weights();
  }
  return replicas_[replica].loop->weights();
}

// An update that is given up at once does it.
void ReplicaSet::MakeStale(size_t replica) {
  const auto update = replicas_[replica].loop->BeginWeightUpdate({.mode = SleepMode::kKeep});
  if (update.ok()) return;
  LogError("{}replica {} has kept the weights from which nothing should be served: {}", smallest_.log_name,
           replica, std::string(update.status().message()));
}

bool ReplicaSet::GaveUpStaleWeights() const {
  bool gave_up = false;
  for (const Replica& replica : replicas_) {
    if (replica.loop->state() == EngineState::kFailed) continue;
    if (!replica.loop->gave_up_stale_weights()) return false;
    gave_up = true;
  }
  return gave_up;
}

void ReplicaSet::NoteWeights(bool updates, MonotonicTime began) {
  {
    absl::MutexLock lock(&mu_);
    for (size_t i = 0; i < replicas_.size(); ++i) router_.Forget(static_cast<int>(i));
  }
  if (observer_ == nullptr) return;
  const Weights weights = replicas_[0].loop->weights();
  observer_->OnWeightsChanged({.updates = updates,
                               .duration = smallest_.monotonic_now() - began,
                               .version = weights.version,
                               .source = weights.source()});
}

absl::StatusOr<WeightsChange> ReplicaSet::ReloadWeights(const WeightsRequest& request) {
  const LifecycleLock lifecycle(this, "reload_weights", request.mode != SleepMode::kWait);
  RETURN_IF_ERROR(lifecycle.status());
  RETURN_IF_ERROR(CheckLifecycle());
  CallScope scope(this, SetCall::kPause);
  RETURN_IF_ERROR(SettleOpenRequests(request.mode));
  RETURN_IF_ERROR(CheckCaller());
  const CallerScope begun(BegunCaller());
  scope.Set(SetCall::kWakeUp);
  const MonotonicTime began = smallest_.monotonic_now();
  const WeightsRequest of_replica = OfEveryReplica(request);
  ASSIGN_OR_RETURN(std::vector<size_t> others, LiveReplicas());
  const size_t first = others.front();
  others.erase(others.begin());
  const absl::StatusOr<WeightsChange> change = replicas_[first].loop->ReloadWeights(of_replica);
  if (!change.ok()) return OfReplica(first, change.status());
  std::vector<absl::Status> errors(replicas_.size());
  ForAll(others, [&](size_t i) {
    const absl::StatusOr<WeightsChange> own = replicas_[i].loop->ReloadWeights(of_replica);
    errors[i] = own.status();
    if (own.ok() && own->fingerprint != change->fingerprint)
      errors[i] = absl::DataLossError("it has read other files than the others");
    if (IsRefusal(errors[i]) || absl::IsDataLoss(errors[i])) MakeStale(i);
  });
  for (const size_t i : others) {
    if (errors[i].ok() || replicas_[i].loop->state() == EngineState::kFailed) continue;
    return absl::InternalError(OfReplica(i, errors[i]).message());
  }
  NoteWeights(/*updates=*/false, began);
  return change;
}

absl::StatusOr<std::unique_ptr<WeightUpdate>> ReplicaSet::BeginWeightUpdate(const WeightsRequest& request) {
  auto lifecycle = std::make_unique<LifecycleLock>(this, "update_weights", request.mode != SleepMode::kWait);
  RETURN_IF_ERROR(lifecycle->status());
  RETURN_IF_ERROR(CheckLifecycle());
  auto scope = std::make_unique<CallScope>(this, SetCall::kPause);
  RETURN_IF_ERROR(SettleOpenRequests(request.mode));
  RETURN_IF_ERROR(CheckCaller());
  const CallerScope begun(BegunCaller());
  scope->Set(SetCall::kWakeUp);
  const WeightsRequest of_replica = OfEveryReplica(request);
  ASSIGN_OR_RETURN(const std::vector<size_t> live, LiveReplicas());
  auto update =
      std::make_unique<Update>(this, std::move(lifecycle), std::move(scope), smallest_.monotonic_now());
  for (const size_t replica : live) {
    const absl::Status status = update->Begin(replica, of_replica);
    const bool failed = replicas_[replica].loop->state() == EngineState::kFailed;
    if (status.ok() || (failed && replica != live.front())) continue;
    // What one refuses after another one has begun has changed something.
    return IsRefusal(status) && replica != live.front() ? absl::InternalError(status.message()) : status;
  }
  return update;
}

}  // namespace somnus
