#include "coordinator/replicas/commands/replica_weights.h"

#include <algorithm>

#include "base/memory_tags.h"
#include "base/status_macros.h"
#include "coordinator/engine/caller.h"
#include "coordinator/executor/memory_check.h"
#include "coordinator/residency/weights.h"

namespace somnus {

ReplicaWeights::ReplicaWeights(const SetParts& parts, const char* name, const WeightsRequest& request)
    : parts_(parts), turn_(parts, name, request.mode != SleepMode::kWait), of_replica_(request) {}

absl::Status ReplicaWeights::Begin() {
  RETURN_IF_ERROR(turn_.Check());
  scope_.emplace(parts_, SetCall::kPause);
  RETURN_IF_ERROR(scope_->Settle(of_replica_.mode));
  RETURN_IF_ERROR(CheckCaller());
  of_replica_.mode = SleepMode::kKeep;
  scope_->Set(SetCall::kWakeUp);
  began_ = parts_.options.monotonic_now();
  ChooseVersion();
  return ChooseReplicas();
}

void ReplicaWeights::ChooseVersion() {
  if (of_replica_.version != 0) return;
  for (size_t i = 0; i < parts_.loops.size(); ++i)
    of_replica_.version = std::max(of_replica_.version, parts_.loops.loop(i).weights().version + 1);
}

absl::Status ReplicaWeights::ChooseReplicas() {
  std::vector<size_t> recovering;
  for (size_t i = 0; i < parts_.loops.size(); ++i) {
    const EngineState state = parts_.loops.state(i);
    if (state == EngineState::kFailed) continue;
    (state == EngineState::kRecovering ? recovering : live_).push_back(i);
  }
  live_.insert(live_.end(), recovering.begin(), recovering.end());
  if (live_.empty()) return absl::FailedPreconditionError("the engine has failed");
  return CheckWeightsAreMapped();
}

absl::Status ReplicaWeights::CheckWeightsAreMapped() const {
  for (const size_t i : live_) {
    if (parts_.loops.loop(i).Stats().residency.asleep().count(kWeightsTag) > 0)
      return OfReplica(i, absl::FailedPreconditionError(kWeightsSleep));
  }
  return absl::OkStatus();
}

void ReplicaWeights::NoteChanged(bool updates) {
  parts_.queue.NoteCachesEmpty();
  if (parts_.observer == nullptr) return;
  const Weights weights = parts_.loops.loop(0).weights();
  parts_.observer->OnWeightsChanged({.updates = updates,
                                     .duration = parts_.options.monotonic_now() - began_,
                                     .version = weights.version,
                                     .source = weights.source()});
}

}  // namespace somnus
