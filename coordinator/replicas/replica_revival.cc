#include "coordinator/replicas/replica_revival.h"

#include <algorithm>

#include "base/log.h"
#include "base/status_macros.h"
#include "coordinator/engine/caller.h"
#include "coordinator/engine/run_for_caller.h"
#include "coordinator/executor/memory_check.h"
#include "coordinator/replicas/set_call.h"
#include "coordinator/residency/declined.h"

namespace somnus {

ReplicaRevival::ReplicaRevival(const SetParts& parts, const ReplicaRetry& retry, size_t num_replicas)
    : parts_(parts),
      restart_workers_(retry.restart_workers),
      backoffs_(num_replicas, RetryBackoff(retry.first_pause, retry.longest_pause)) {}

void ReplicaRevival::NoteState(size_t replica) {
  const MonotonicTime now = parts_.options.monotonic_now();
  absl::MutexLock lock(&mu_);
  RetryBackoff& backoff = backoffs_[replica];
  if (parts_.loops.IsAwake(replica)) backoff.NoteServing(now);
  if (!parts_.loops.loop(replica).may_revive() || backoff.due() != absl::InfiniteDuration()) return;
  const absl::Duration pause = backoff.NoteFailed(now);
  if (pause < absl::InfiniteDuration())
    LogInfo("{}replica {} is tried again in {}", parts_.options.log_name, replica,
            absl::FormatDuration(pause));
}

void ReplicaRevival::NoteTry(size_t replica) {
  absl::MutexLock lock(&mu_);
  backoffs_[replica].NoteTry();
}

absl::Duration ReplicaRevival::RetryDue() {
  constexpr absl::Duration kBusyPause = absl::Seconds(1);
  if (parts_.waits.draining()) return absl::InfiniteDuration();
  absl::Duration next = absl::InfiniteDuration();
  std::vector<size_t> due;
  {
    absl::MutexLock lock(&mu_);
    for (size_t i = 0; i < backoffs_.size(); ++i) {
      const absl::Duration left = backoffs_[i].due() - parts_.options.monotonic_now();
      if (left > absl::ZeroDuration()) {
        next = std::min(next, left);
      } else {
        due.push_back(i);
      }
    }
  }
  // A change of the state wakes this thread.
  if (due.empty() || parts_.board.state() != EngineState::kAwake) return next;
  if (!parts_.turns.TryTake()) return kBusyPause;
  const bool awake = parts_.board.state() == EngineState::kAwake;
  for (const size_t replica : due) {
    if (!awake) break;
    NoteTry(replica);
    (void)parts_.loops.loop(replica).Revive(restart_workers_, parts_.loops.WeightsBeside(replica));
  }
  parts_.turns.Give();
  return awake ? next : kBusyPause;
}

absl::Status ReplicaRevival::AwaitSettled() {
  // A recovery ends by itself, well or not.
  parts_.waits.AwaitFor([&] { return parts_.waits.draining() || !parts_.loops.IsAnyRecovering(); },
                        absl::InfiniteDuration());
  if (!parts_.waits.draining()) return absl::OkStatus();
  return absl::FailedPreconditionError(WhyNotReady(EngineState::kDraining));
}

absl::Status ReplicaRevival::ReviveAndWait(size_t replica) {
  EngineLoop& loop = parts_.loops.loop(replica);
  NoteTry(replica);
  if (loop.Revive(/*restart_workers=*/true, parts_.loops.WeightsBeside(replica)))
    RETURN_IF_ERROR(AwaitSettled());
  if (loop.state() != EngineState::kFailed) return absl::OkStatus();
  return absl::UnavailableError(loop.Stats().error);
}

absl::Status ReplicaRevival::Revive(bool asleep) {
  const CallTurn turn(parts_, "revive", /*ends_waits=*/false);
  RETURN_IF_ERROR(turn.Check());
  const CallerScope begun(BegunCaller());
  const EngineState state = parts_.board.state();
  std::vector<size_t> failed;
  for (size_t i = 0; i < parts_.loops.size(); ++i) {
    if (parts_.loops.HasFailed(i)) failed.push_back(i);
  }
  if (failed.empty()) return DeclinedError("no replica has failed");
  if (state != EngineState::kFailed && state != EngineState::kAwake)
    return absl::FailedPreconditionError("replicas are revived while the others are awake");
  std::vector<absl::Status> errors(failed.size());
  RunForCaller(failed.size(), [&](size_t k) {
    const size_t i = failed[k];
    errors[k] = state == EngineState::kAwake ? ReviveAndWait(i) : parts_.loops.loop(i).Revive(asleep);
  });
  for (size_t k = 0; k < failed.size(); ++k) {
    if (!errors[k].ok() && !IsDeclined(errors[k])) return OfReplica(failed[k], errors[k]);
  }
  return absl::OkStatus();
}

}  // namespace somnus
