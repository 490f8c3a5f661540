// ReplicaSet's part for sleep, wake-up, the reset of the prefix cache, and the end.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/memory_tags.h"
#include "base/status_macros.h"
#include "coordinator/replicas/replica_set.h"

namespace somnus {
namespace {

absl::Status OfReplica(size_t replica, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat("replica ", replica, ": ", status.message()));
}

// Of `tags` (empty: all) those that are resident.
std::vector<std::string> ResidentOf(const std::vector<std::string>& tags, const Residency& residency) {
  std::vector<std::string> resident;
  for (const std::string tag : kMemoryTags) {
    const bool named = tags.empty() || std::find(tags.begin(), tags.end(), tag) != tags.end();
    if (named && residency.state(tag) == TagState::kResident) resident.push_back(tag);
  }
  return resident;
}

}  // namespace

// From its beginning until its end, the state says what the whole engine is doing.
class ReplicaSet::CallScope {
 public:
  CallScope(ReplicaSet* set, SetCall call) : set_(set) { Set(call); }
  ~CallScope() { Set(SetCall::kNone); }
  CallScope(const CallScope&) = delete;

 private:
  void Set(SetCall call) {
    {
      absl::MutexLock lock(&set_->state_mu_);
      set_->call_ = call;
    }
    set_->UpdateState();
    set_->mail_.Wake();
  }

  ReplicaSet* const set_;
};

ReplicaSet::Results ReplicaSet::CallReplicas(const std::vector<bool>& chosen, const ReplicaCall& call) {
  Results results(replicas_.size(), TransitionReport());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < replicas_.size(); ++i) {
    if (!chosen[i] || replicas_[i].loop->state() == EngineState::kFailed) continue;
    threads.emplace_back([&, i] { results[i] = call(replicas_[i].loop.get(), i); });
  }
  for (std::thread& thread : threads) thread.join();
  return results;
}

absl::StatusOr<TransitionReport> ReplicaSet::Sum(const Results& results) const {
  TransitionReport sum;
  size_t num_failed = 0;
  for (size_t i = 0; i < results.size(); ++i) {
    const bool failed = replicas_[i].loop->state() == EngineState::kFailed;
    num_failed += failed ? 1 : 0;
    if (!results[i].ok() && (!failed || num_failed == results.size()))
      return OfReplica(i, results[i].status());
    if (!results[i].ok()) continue;
    sum.Add(*results[i], static_cast<int>(i));
  }
  if (num_failed == results.size()) return absl::FailedPreconditionError("the engine has failed");
  return sum;
}

std::vector<Residency> ReplicaSet::Residencies() const {
  std::vector<Residency> residencies;
  for (const Replica& replica : replicas_) residencies.push_back(replica.loop->Stats().residency);
  return residencies;
}

// Calls those whose call succeeded and that `choose` names, and logs what cannot be undone.
void ReplicaSet::Undo(const Results& results, const std::function<bool(size_t)>& choose,
                      const ReplicaCall& call) {
  std::vector<bool> chosen;
  for (size_t i = 0; i < results.size(); ++i) chosen.push_back(results[i].ok() && choose(i));
  const Results undone = CallReplicas(chosen, call);
  for (size_t i = 0; i < undone.size(); ++i) {
    if (undone[i].ok()) continue;
    LogError("replica {} is not what it was before the call that failed: {}", i,
             std::string(undone[i].status().message()));
  }
}

absl::Status ReplicaSet::CheckLifecycle() const {
  absl::MutexLock lock(&mu_);
  if (draining_) return absl::FailedPreconditionError("the server is shutting down");
  return absl::OkStatus();
}

absl::StatusOr<TransitionReport> ReplicaSet::Sleep(const SleepRequest& request) {
  absl::MutexLock lifecycle(&lifecycle_mu_);
  RETURN_IF_ERROR(CheckLifecycle());
  const CallScope scope(this, SetCall::kSleep);
  const std::vector<Residency> before = Residencies();
  const Results results = CallReplicas(All(), [&](EngineLoop* loop, size_t) { return loop->Sleep(request); });
  absl::StatusOr<TransitionReport> report = Sum(results);
  if (!report.ok()) {
    Undo(
        results, [&](size_t i) { return !ResidentOf(request.tags, before[i]).empty(); },
        [&](EngineLoop* loop, size_t i) { return loop->WakeUp(ResidentOf(request.tags, before[i])); });
  }
  return report;
}

absl::StatusOr<TransitionReport> ReplicaSet::WakeUp(const std::vector<std::string>& tags) {
  absl::MutexLock lifecycle(&lifecycle_mu_);
  RETURN_IF_ERROR(CheckLifecycle());
  const CallScope scope(this, SetCall::kWakeUp);
  const std::vector<Residency> before = Residencies();
  const Results results = CallReplicas(All(), [&](EngineLoop* loop, size_t) { return loop->WakeUp(tags); });
  absl::StatusOr<TransitionReport> report = Sum(results);
  if (!report.ok()) {
    Undo(
        results, [&](size_t i) { return !before[i].ToWake(tags).empty(); },
        [&](EngineLoop* loop, size_t i) {
          return loop->Sleep({.level = before[i].level(), .tags = before[i].ToWake(tags)});
        });
  }
  return report;
}

absl::Status ReplicaSet::ResetPrefixCache() {
  absl::MutexLock lifecycle(&lifecycle_mu_);
  const Results results =
      CallReplicas(All(), [](EngineLoop* loop, size_t) -> absl::StatusOr<TransitionReport> {
        RETURN_IF_ERROR(loop->ResetPrefixCache());
        return TransitionReport();
      });
  {
    absl::MutexLock lock(&mu_);
    for (size_t i = 0; i < replicas_.size(); ++i) router_.Forget(static_cast<int>(i));
  }
  return Sum(results).status();
}

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
  if (!lifecycle_mu_.TryLock()) return kBusyPause;
  const bool awake = state_ == EngineState::kAwake;
  for (const size_t replica : due) {
    if (!awake) break;
    {
      absl::MutexLock lock(&mu_);
      replicas_[replica].retry.NoteTry();
    }
    (void)replicas_[replica].loop->Revive(retry_.restart_workers);
  }
  lifecycle_mu_.Unlock();
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
  if (loop->Revive(/*restart_workers=*/true)) {
    absl::MutexLock lock(&mu_);
    RETURN_IF_ERROR(AwaitSettled());
  }
  if (loop->state() != EngineState::kFailed) return absl::OkStatus();
  return absl::UnavailableError(loop->Stats().error);
}

absl::Status ReplicaSet::Empty(size_t replica, absl::Duration grace) {
  absl::MutexLock lock(&mu_);
  RETURN_IF_ERROR(AwaitSettled());
  if (const EngineState state = replicas_[replica].loop->state(); state != EngineState::kAwake)
    return absl::FailedPreconditionError(WhyNotReady(state));
  if (!AnotherServes(replica)) return absl::FailedPreconditionError("no other replica would serve meanwhile");
  replicas_[replica].is_rolling = true;
  LogInfo("roll: replica {} has {} open requests, which may finish within {}", replica,
          replicas_[replica].num_open, absl::FormatDuration(grace));
  const auto empty = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return draining_ || replicas_[replica].num_open == 0;
  };
  mu_.AwaitWithTimeout(absl::Condition(&empty), grace);
  if (!draining_) return absl::OkStatus();
  return absl::FailedPreconditionError(WhyNotReady(EngineState::kDraining));
}

// Those that have failed come first, so that as many as can be serve while the others are restarted. They
// have new workers then.
absl::Status ReplicaSet::Roll(absl::Duration grace) {
  absl::MutexLock lifecycle(&lifecycle_mu_);
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
      const absl::Status status = part == &failed ? ReviveAndWait(i) : RollOne(i, grace);
      if (status.ok()) {
        LogInfo("roll: replica {} is back, {} of {} are done", i, ++num_done, replicas_.size());
        continue;
      }
      LogError("the roll ends at replica {}: {}", i, std::string(status.message()));
      return OfReplica(i, status);
    }
  }
  return absl::OkStatus();
}

absl::Status ReplicaSet::RollOne(size_t replica, absl::Duration grace) {
  absl::Status status = Empty(replica, grace);
  if (status.ok()) status = replicas_[replica].loop->Restart();
  {
    absl::MutexLock lock(&mu_);
    replicas_[replica].is_rolling = false;
  }
  mail_.Wake();
  return status;
}

// No replica will get to serve by itself.
bool ReplicaSet::NobodyServes() const {
  return std::all_of(replicas_.begin(), replicas_.end(), [](const Replica& replica) {
    const EngineState state = replica.loop->state();
    return state == EngineState::kAsleep || state == EngineState::kFailed;
  });
}

void ReplicaSet::DrainAndStop(absl::Duration grace) {
  {
    absl::MutexLock lock(&state_mu_);
    state_drains_ = true;
  }
  UpdateState();
  {
    absl::MutexLock lock(&mu_);
    draining_ = true;
    // Only then do the replicas drain: until the last request has ended, each takes what another one loses.
    const auto drained = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
      return entries_.empty() || stopping_ || NobodyServes();
    };
    mu_.AwaitWithTimeout(absl::Condition(&drained), grace);
    stopping_ = true;
  }
  mail_.Wake();
  std::vector<std::thread> threads;
  for (Replica& replica : replicas_) {
    threads.emplace_back([&replica] { replica.loop->DrainAndStop(absl::ZeroDuration()); });
  }
  for (std::thread& thread : threads) thread.join();
  absl::MutexLock join_lock(&join_mu_);
  if (!thread_.joinable()) return;
  for (Replica& replica : replicas_) replica.loop->OnStateChange(nullptr);
  {
    absl::MutexLock lock(&mu_);
    stopped_ = true;  // the last pass ends what the replicas have handed over meanwhile
  }
  mail_.Wake();
  thread_.join();
}

}  // namespace somnus
