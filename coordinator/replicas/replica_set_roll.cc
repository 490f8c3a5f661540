// ReplicaSet's part for replicas that are restarted: after a failure, or in a roll.

#include <algorithm>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/status_macros.h"
#include "base/threads.h"
#include "coordinator/engine/caller.h"
#include "coordinator/executor/memory_check.h"
#include "coordinator/replicas/replica_set.h"
#include "coordinator/residency/declined.h"

namespace somnus {

bool ReplicaSet::AnotherServes(size_t replica) const {
  for (size_t i = 0; i < replicas_.size(); ++i) {
    if (i != replica && replicas_[i].loop->state() == EngineState::kAwake) return true;
  }
  return false;
}

// During a lifecycle call, and unless the engine is awake, they wait: what comes back is awake, which others
// must not be asked to undo.
absl::Duration ReplicaSet::RetryFailed() {
  constexpr absl::Duration kBusyPause = absl::Seconds(1);
  absl::Duration next = absl::InfiniteDuration();
  std::vector<size_t> due;
  {
    absl::MutexLock lock(&mu_);
    for (size_t i = 0; i < replicas_.size() && !draining_; ++i) {
      const absl::Duration left = replicas_[i].retry.due() - smallest_.monotonic_now();
      if (left > absl::ZeroDuration()) {
        next = std::min(next, left);
      } else {
        due.push_back(i);
      }
    }
  }
  if (due.empty() || state_ != EngineState::kAwake) return next;  // a change of the state wakes this thread
  if (!turns_.TryTake()) return kBusyPause;
  const bool awake = state_ == EngineState::kAwake;
  for (const size_t replica : due) {
    if (!awake) break;
    {
      absl::MutexLock lock(&mu_);
      replicas_[replica].retry.NoteTry();
    }
    (void)replicas_[replica].loop->Revive(retry_.restart_workers, WeightsOfOthers(replica));
  }
  turns_.Give();
  return awake ? next : kBusyPause;
}

absl::Status ReplicaSet::AwaitSettled() {
  // A recovery ends by itself, well or not.
  const auto settled = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return draining_ || std::none_of(replicas_.begin(), replicas_.end(), [](const Replica& one) {
             return one.loop->state() == EngineState::kRecovering;
           });
  };
  mu_.Await(absl::Condition(&settled));
  if (!draining_) return absl::OkStatus();
  return absl::FailedPreconditionError(WhyNotReady(EngineState::kDraining));
}

absl::Status ReplicaSet::ReviveAndWait(size_t replica) {
  EngineLoop* const loop = replicas_[replica].loop.get();
  {
    absl::MutexLock lock(&mu_);
    replicas_[replica].retry.NoteTry();
  }
  if (loop->Revive(/*restart_workers=*/true, WeightsOfOthers(replica))) {
    absl::MutexLock lock(&mu_);
    RETURN_IF_ERROR(AwaitSettled());
  }
  if (loop->state() != EngineState::kFailed) return absl::OkStatus();
  return absl::UnavailableError(loop->Stats().error);
}

// Beside replicas that serve, the failed replicas come back awake; else as Engine::Revive says.
absl::Status ReplicaSet::Revive(bool asleep) {
  const LifecycleLock lifecycle(this, "revive", /*ends_waits=*/false);
  RETURN_IF_ERROR(lifecycle.status());
  RETURN_IF_ERROR(CheckLifecycle());
  const CallerScope begun(BegunCaller());
  const EngineState state = state_;
  std::vector<absl::Status> errors(replicas_.size(), DeclinedError("no replica has failed"));
  std::vector<size_t> failed;
  for (size_t i = 0; i < replicas_.size(); ++i) {
    if (replicas_[i].loop->state() != EngineState::kFailed) continue;
    if (state != EngineState::kFailed && state != EngineState::kAwake)
      return absl::FailedPreconditionError("replicas are revived while the others are awake");
    failed.push_back(i);
  }
  RunTogether(failed.size(), [&](size_t k) {
    const size_t i = failed[k];
    errors[i] = state == EngineState::kAwake ? ReviveAndWait(i) : replicas_[i].loop->Revive(asleep);
  });
  for (size_t i = 0; i < replicas_.size(); ++i) {
    if (failed.empty()) return errors[i];
    if (!errors[i].ok() && !IsDeclined(errors[i])) return OfReplica(i, errors[i]);
  }
  return absl::OkStatus();
}

absl::Status ReplicaSet::MayEmpty(size_t replica) const {
  if (const EngineState state = replicas_[replica].loop->state(); state != EngineState::kAwake)
    return absl::FailedPreconditionError(WhyNotReady(state));
  if (!AnotherServes(replica)) return absl::FailedPreconditionError("no other replica would serve meanwhile");
  return absl::OkStatus();
}

absl::Status ReplicaSet::Empty(size_t replica, absl::Duration grace, LifecycleLock* lifecycle) {
  {
    absl::MutexLock lock(&mu_);
    RETURN_IF_ERROR(AwaitSettled());
    RETURN_IF_ERROR(MayEmpty(replica));
    replicas_[replica].is_rolling = true;
    LogInfo("{}roll: replica {} has {} open requests, which may finish within {}", smallest_.log_name,
            replica, replicas_[replica].num_open, absl::FormatDuration(grace));
  }
  lifecycle->Give();
  absl::Status waited;
  {
    const auto empty = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return replicas_[replica].num_open == 0; };
    absl::MutexLock lock(&mu_);
    waited = AwaitInCall(empty, grace);
  }
  RETURN_IF_ERROR(lifecycle->Take());
  RETURN_IF_ERROR(waited);
  RETURN_IF_ERROR(CheckLifecycle());
  absl::MutexLock lock(&mu_);
  RETURN_IF_ERROR(AwaitSettled());
  return MayEmpty(replica);  // further calls may have had their turn meanwhile
}

// Those that have failed come first, so that as many as can be serve while the others are restarted. They
// have new workers then.
absl::Status ReplicaSet::Roll(absl::Duration grace) {
  LifecycleLock lifecycle(this, "roll", /*ends_waits=*/false);
  RETURN_IF_ERROR(lifecycle.status());
  {
    absl::MutexLock lock(&mu_);
    if (rolls_) return absl::FailedPreconditionError("another roll is under way");
    rolls_ = true;
    roll_call_ = lifecycle_call_;
  }
  const CallerScope begun(BegunCaller());
  const absl::Status status = RollAll(grace, &lifecycle);
  absl::MutexLock lock(&mu_);
  rolls_ = false;
  return status;
}

absl::Status ReplicaSet::RollAll(absl::Duration grace, LifecycleLock* lifecycle) {
  std::vector<size_t> failed, others;
  {
    absl::MutexLock lock(&mu_);
    RETURN_IF_ERROR(AwaitSettled());
  }
  if (const EngineState state = state_; state != EngineState::kAwake)
    return absl::FailedPreconditionError(WhyNotReady(state));
  for (size_t i = 0; i < replicas_.size(); ++i)
    (replicas_[i].loop->state() == EngineState::kFailed ? failed : others).push_back(i);
  size_t num_done = 0;
  for (const std::vector<size_t>* part : {&failed, &others}) {
    for (const size_t i : *part) {
      const absl::Status status = part == &failed ? ReviveAndWait(i) : RollOne(i, grace, lifecycle);
      if (status.ok()) {
        LogInfo("{}roll: replica {} is back, {} of {} are done", smallest_.log_name, i, ++num_done,
                replicas_.size());
        continue;
      }
      LogError("{}the roll ends at replica {}: {}", smallest_.log_name, i, std::string(status.message()));
      return OfReplica(i, status);
    }
  }
  return absl::OkStatus();
}

absl::Status ReplicaSet::RollOne(size_t replica, absl::Duration grace, LifecycleLock* lifecycle) {
  absl::Status status = Empty(replica, grace, lifecycle);
  if (status.ok()) status = replicas_[replica].loop->Restart();
  {
    absl::MutexLock lock(&mu_);
    replicas_[replica].is_rolling = false;
  }
  mail_.Wake();
  return status;
}

// ---- The turn of a lifecycle call of the whole set

ReplicaSet::LifecycleLock::LifecycleLock(ReplicaSet* set, const char* name, bool ends_waits)
    : set_(set), name_(name) {
  if (ends_waits) Interrupt(1);
  (void)Take();
  if (ends_waits) Interrupt(-1);
}

ReplicaSet::LifecycleLock::~LifecycleLock() {
  if (status_.ok()) Give();
}

absl::Status ReplicaSet::LifecycleLock::Take() {
  status_ = set_->turns_.Take();
  if (!status_.ok()) return status_;
  const std::shared_ptr<const Caller> caller = CurrentCaller();
  absl::MutexLock lock(&set_->mu_);
  set_->lifecycle_call_ = {.name = name_,
                           .client = caller == nullptr ? "" : caller->name,
                           .began = set_->smallest_.monotonic_now()};
  return status_;
}

void ReplicaSet::LifecycleLock::Give() {
  {
    absl::MutexLock lock(&set_->mu_);
    set_->lifecycle_call_ = LifecycleCallStats();
  }
  set_->turns_.Give();
}

void ReplicaSet::LifecycleLock::Interrupt(int64_t count) {
  absl::MutexLock lock(&set_->mu_);
  set_->num_interruptions_ += count;
  set_->NoteChange();
}

}  // namespace somnus
