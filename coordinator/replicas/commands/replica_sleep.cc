#include "coordinator/replicas/commands/replica_sleep.h"

#include <algorithm>

#include "base/memory_tags.h"
#include "base/request_bounds.h"
#include "base/status_macros.h"
#include "coordinator/residency/weights.h"

namespace somnus {

ReplicaSleep::ReplicaSleep(const SetParts& parts, const SleepRequest& request)
    : ReplicaTransition(parts, "sleep", request.mode != SleepMode::kWait && !request.only_if_idle),
      request_(request) {}

absl::StatusOr<TransitionReport> ReplicaSleep::Run() {
  RETURN_IF_ERROR(turn().Check());
  if (request_.only_if_idle && (parts().queue.num_open() > 0 || parts().board.state() != EngineState::kAwake))
    return absl::AbortedError("the engine is not idle");
  CallScope scope(parts(), request_.mode == SleepMode::kWait ? SetCall::kPause : SetCall::kSleep);
  if (!request_.force && !request_.spares_only_copy && LosesOnlyCopy())
    return absl::FailedPreconditionError(kForceLosesOnlyCopy);
  RETURN_IF_ERROR(scope.Settle(request_.mode));
  if (request_.spares_only_copy && request_.level >= kMaxSleepLevel && parts().board.Stats().only_copy)
    return absl::AbortedError(kSparesOnlyCopy);
  scope.Set(SetCall::kSleep);
  kept_bytes_ = ShareKeptBytes();
  return RunTransition(/*wakes=*/false);
}

absl::StatusOr<TransitionReport> ReplicaSleep::DoAt(EngineLoop* loop, size_t replica) {
  return loop->Sleep({.level = request_.level,
                      .tags = request_.tags,
                      .force = true,
                      .max_kept_bytes = kept_bytes_[replica]});
}

absl::StatusOr<TransitionReport> ReplicaSleep::UndoAt(EngineLoop* loop, size_t replica) {
  return loop->UndoSleep(Released(replica));
}

bool ReplicaSleep::LosesOnlyCopy() const {
  if (request_.level < kMaxSleepLevel) return false;
  for (const EngineStats& stats : parts().loops.Stats()) {
    if (stats.state == EngineState::kFailed || !stats.only_copy) continue;
    const std::vector<std::string> tags = stats.residency.ToSleep(spec());
    if (std::find(tags.begin(), tags.end(), kWeightsTag) != tags.end()) return true;
  }
  return false;
}

std::vector<std::optional<int64_t>> ReplicaSleep::ShareKeptBytes() const {
  const ReplicaLoops& loops = parts().loops;
  std::vector<std::optional<int64_t>> shares(loops.size());
  if (!request_.max_kept_bytes.has_value()) return shares;
  int64_t left = *request_.max_kept_bytes;
  for (size_t i = 0; i < loops.size(); ++i) {
    const bool last = i + 1 == loops.size();
    shares[i] = last ? left : std::min(left, loops.loop(i).Stats().keepable_bytes);
    left -= *shares[i];
  }
  return shares;
}

std::vector<std::string> ReplicaSleep::Released(size_t replica) const {
  std::vector<std::string> tags = before(replica).ToSleep(spec());
  std::erase_if(tags,
                [&](const std::string& tag) { return before(replica).state(tag) != TagState::kResident; });
  return tags;
}

}  // namespace somnus
