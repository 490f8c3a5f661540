// ReplicaSet's part for sleep, wake-up, pause, the reset of the prefix cache, and the end.

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/memory_tags.h"
#include "base/request_bounds.h"
#include "base/status_macros.h"
#include "base/threads.h"
#include "coordinator/engine/caller.h"
#include "coordinator/executor/memory_check.h"
#include "coordinator/replicas/call_scope.h"
#include "coordinator/replicas/replica_set.h"
#include "coordinator/residency/declined.h"

namespace somnus {
namespace {

// What a wake-up has to bring back to undo the sleep.
std::vector<std::string> Released(const SleepSpec& spec, const Residency& before) {
  std::vector<std::string> tags = before.ToSleep(spec);
  std::erase_if(tags, [&](const std::string& tag) { return before.state(tag) != TagState::kResident; });
  return tags;
}

// A call of a replica that returns no report.
template <typename Call>
auto StatusCall(Call call) {
  return [call = std::move(call)](EngineLoop* loop, size_t) -> absl::StatusOr<TransitionReport> {
    RETURN_IF_ERROR(call(loop));
    return TransitionReport();
  };
}

}  // namespace

ReplicaSet::Results ReplicaSet::CallReplicas(const std::vector<bool>& chosen, const ReplicaCall& call) {
  Results results(replicas_.size(), TransitionReport());
  const CallerScope begun(BegunCaller());  // RunTogether may run calls on this thread
  RunTogether(replicas_.size(), [&](size_t i) {
    if (!chosen[i] || replicas_[i].loop->state() == EngineState::kFailed) return;
    results[i] = call(replicas_[i].loop.get(), i);
  });
  return results;
}

absl::StatusOr<TransitionReport> ReplicaSet::Sum(const Results& results) const {
  TransitionReport sum;
  std::vector<absl::Status> errors;
  size_t num_failed = 0;
  for (size_t i = 0; i < results.size(); ++i) {
    const bool failed = replicas_[i].loop->state() == EngineState::kFailed;
    num_failed += failed ? 1 : 0;
    if (!results[i].ok() && (!failed || num_failed == results.size()))
      errors.push_back(OfReplica(i, results[i].status()));
    if (results[i].ok()) sum.Add(*results[i], static_cast<int>(i));
  }
  if (!errors.empty()) return WithMissingOfAll(errors.front(), errors);
  if (num_failed == results.size()) return DeclinedError("the engine has failed");
  return sum;
}

std::vector<Residency> ReplicaSet::Residencies() const {
  std::vector<Residency> residencies;
  for (const Replica& replica : replicas_) residencies.push_back(replica.loop->Stats().residency);
  return residencies;
}

absl::Status ReplicaSet::Undo(const absl::Status& error, const Results& results,
                              const std::function<bool(size_t)>& choose, const ReplicaCall& call) {
  std::vector<bool> chosen;
  for (size_t i = 0; i < results.size(); ++i) chosen.push_back(results[i].ok() && choose(i));
  const Results undone = CallReplicas(chosen, call);
  std::string left;
  for (size_t i = 0; i < undone.size(); ++i) {
    if (undone[i].ok()) continue;
    const std::string reason(undone[i].status().message());
    LogError("{}replica {} is not what it was before the call that failed: {}", smallest_.log_name, i,
             reason);
    absl::StrAppend(&left, "; replica ", i,
                    " is not what it was before, since it could not be brought back: ", reason);
  }
  if (left.empty()) return error;
  absl::Status with_left(error.code(), absl::StrCat(error.message(), left));
  error.ForEachPayload(
      [&](absl::string_view type, const absl::Cord& payload) { with_left.SetPayload(type, payload); });
  return with_left;
}

absl::Status ReplicaSet::CheckLifecycle() const {
  absl::MutexLock lock(&mu_);
  if (draining_) return DeclinedError("the server is shutting down");
  return absl::OkStatus();
}

absl::Status ReplicaSet::SettleOpenRequests(SleepMode mode) {
  const EngineState state = state_;
  if (mode == SleepMode::kKeep) return absl::OkStatus();
  if (mode == SleepMode::kWait && (state == EngineState::kPaused || state == EngineState::kAsleep))
    return absl::OkStatus();
  std::vector<std::string> open;
  {
    absl::MutexLock lock(&mu_);
    hold_back_from_ = next_order_;
    num_awaited_ = static_cast<int64_t>(entries_.size());
    for (const auto& [id, entry] : entries_) open.push_back(id);
  }
  if (mode == SleepMode::kAbort) {
    for (const std::string& id : open) Abort(id);
  }
  absl::MutexLock lock(&mu_);
  const auto settled = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return num_awaited_ == 0 || (mode == SleepMode::kWait && num_interruptions_ > 0);
  };
  RETURN_IF_ERROR(AwaitInCall(settled, absl::InfiniteDuration()));
  if (num_awaited_ == 0) return absl::OkStatus();
  return absl::AbortedError("another call has ended the wait for open requests");
}

absl::Status ReplicaSet::AwaitInCall(const std::function<bool()>& condition, absl::Duration timeout) {
  const int64_t aborts = num_aborts_;
  const MonotonicTime deadline = MonotonicNow() + timeout;
  const auto ends = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return condition() || draining_ || num_aborts_ > aborts;
  };
  ++num_waits_;
  absl::Status caller;
  while (!ends() && caller.ok() && MonotonicNow() < deadline) {
    AwaitFor(ends, std::min(kCallerLook, deadline - MonotonicNow()));
    caller = CheckCaller();
  }
  --num_waits_;
  if (condition()) return absl::OkStatus();
  if (draining_) return DeclinedError("the server is shutting down");
  if (num_aborts_ > aborts) return absl::AbortedError(kEndedByOperator);
  return caller;
}

absl::Status ReplicaSet::AbortCall() {
  bool ended = false;
  {
    absl::MutexLock lock(&mu_);
    ended = num_waits_ > 0;
    num_aborts_ += ended ? 1 : 0;
    NoteChange();
  }
  absl::Status none = absl::FailedPreconditionError("no lifecycle call is under way");
  for (const Replica& replica : replicas_) {
    if (replica.loop->Stats().lifecycle_call.name.empty()) continue;
    const absl::Status status = replica.loop->AbortCall();
    ended |= status.ok();
    none = status;
  }
  return ended ? absl::OkStatus() : none;
}

bool ReplicaSet::LosesOnlyCopy(const SleepSpec& spec) const {
  return spec.level >= kMaxSleepLevel &&
         std::any_of(replicas_.begin(), replicas_.end(), [&](const Replica& replica) {
           const EngineStats stats = replica.loop->Stats();
           const std::vector<std::string> tags = stats.residency.ToSleep(spec);
           return stats.state != EngineState::kFailed && stats.only_copy &&
                  std::find(tags.begin(), tags.end(), kWeightsTag) != tags.end();
         });
}

void ReplicaSet::NoteEnded(const Entry& entry) {
  if (!IsHeldBack(entry.order)) --num_awaited_;
}

void ReplicaSet::NoteTransition(bool wakes, MonotonicTime began, const TransitionReport& report) {
  if (observer_ == nullptr || !report.changed()) return;
  TransitionEvent event;
  event.wakes = wakes;
  event.level = Stats().sleep_level;
  event.duration = smallest_.monotonic_now() - began;
  event.report = report;
  observer_->OnTransition(event);
}

// As much as each would keep, in their order; the last of them have to do with less.
std::vector<std::optional<int64_t>> ReplicaSet::ShareKeptBytes(std::optional<int64_t> max_kept_bytes) const {
  std::vector<std::optional<int64_t>> shares(replicas_.size());
  if (!max_kept_bytes.has_value()) return shares;
  int64_t left = *max_kept_bytes;
  for (size_t i = 0; i < replicas_.size(); ++i) {
    const bool last = i + 1 == replicas_.size();
    shares[i] = last ? left : std::min(left, replicas_[i].loop->Stats().keepable_bytes);
    left -= *shares[i];
  }
  return shares;
}

absl::StatusOr<TransitionReport> ReplicaSet::Sleep(const SleepRequest& request) {
  const LifecycleLock lifecycle(this, "sleep", request.mode != SleepMode::kWait && !request.only_if_idle);
  RETURN_IF_ERROR(lifecycle.status());
  RETURN_IF_ERROR(CheckLifecycle());
  if (request.only_if_idle) {
    absl::MutexLock lock(&mu_);
    if (!entries_.empty() || state_ != EngineState::kAwake)
      return absl::AbortedError("the engine is not idle");
  }
  CallScope scope(this, request.mode == SleepMode::kWait ? SetCall::kPause : SetCall::kSleep);
  if (!request.force && !request.spares_only_copy && LosesOnlyCopy({request.level, request.tags}))
    return absl::FailedPreconditionError(kForceLosesOnlyCopy);
  RETURN_IF_ERROR(SettleOpenRequests(request.mode));
  if (request.spares_only_copy && request.level >= kMaxSleepLevel && Stats().only_copy)
    return absl::AbortedError(kSparesOnlyCopy);
  scope.Set(SetCall::kSleep);
  const MonotonicTime began = smallest_.monotonic_now();
  const std::vector<Residency> before = Residencies();
  const std::vector<std::optional<int64_t>> kept_bytes = ShareKeptBytes(request.max_kept_bytes);
  const Results results = CallReplicas(All(), [&](EngineLoop* loop, size_t i) {
    return loop->Sleep(
        {.level = request.level, .tags = request.tags, .force = true, .max_kept_bytes = kept_bytes[i]});
  });
  absl::StatusOr<TransitionReport> report = Sum(results);
  if (report.ok()) {
    NoteTransition(/*wakes=*/false, began, *report);
    return report;
  }
  const SleepSpec spec = {request.level, request.tags};
  return Undo(
      report.status(), results, [&](size_t i) { return !Released(spec, before[i]).empty(); },
      [&](EngineLoop* loop, size_t i) { return loop->WakeUp(Released(spec, before[i])); });
}

// Each replica checks the memory of its own ranks, and those of one host might all find enough of it. One
// that does not say what it needs finds out by itself.
absl::Status ReplicaSet::CheckMemoryToWake(const std::vector<std::string>& tags) {
  std::vector<std::vector<RankNeed>> needs(replicas_.size());
  CallReplicas(All(), [&](EngineLoop* loop, size_t i) -> absl::StatusOr<TransitionReport> {
    ASSIGN_OR_RETURN(needs[i], loop->PlanWakeUp(tags));
    return TransitionReport();
  });
  return CheckMemoryOfReplicas(needs);
}

absl::StatusOr<TransitionReport> ReplicaSet::WakeReplicas(const std::vector<std::string>& tags,
                                                          const ReplicaCall& call) {
  RETURN_IF_ERROR(CheckLifecycle());
  const CallScope scope(this, SetCall::kWakeUp);
  RETURN_IF_ERROR(CheckMemoryToWake(tags));
  const MonotonicTime began = smallest_.monotonic_now();
  const std::vector<Residency> before = Residencies();
  const Results results = CallReplicas(All(), call);
  absl::StatusOr<TransitionReport> report = Sum(results);
  if (report.ok()) {
    NoteTransition(/*wakes=*/true, began, *report);
    return report;
  }
  return Undo(
      report.status(), results, [&](size_t i) { return !before[i].ToWake(tags).empty(); },
      [&](EngineLoop* loop, size_t i) {
        return loop->Sleep({.level = before[i].level(), .tags = before[i].ToWake(tags), .force = true});
      });
}

absl::StatusOr<TransitionReport> ReplicaSet::WakeUp(const std::vector<std::string>& tags,
                                                    std::optional<bool> load_weights) {
  const LifecycleLock lifecycle(this, "wake_up", /*ends_waits=*/true);
  RETURN_IF_ERROR(lifecycle.status());
  return WakeReplicas(tags, [&](EngineLoop* loop, size_t) { return loop->WakeUp(tags, load_weights); });
}

absl::StatusOr<TransitionReport> ReplicaSet::WakeForArrivals() {
  const LifecycleLock lifecycle(this, "wake_up", /*ends_waits=*/false);
  RETURN_IF_ERROR(lifecycle.status());
  return WakeReplicas({}, [](EngineLoop* loop, size_t) { return loop->WakeForArrivals(); });
}

void ReplicaSet::EndWaiting(const absl::Status& error) {
  const LifecycleLock lifecycle(this, "end_waiting", /*ends_waits=*/false);
  if (!lifecycle.status().ok() || state_ == EngineState::kAwake) return;
  {
    absl::MutexLock lock(&mu_);
    refusal_ = error;
  }
  mail_.Wake();
  CallReplicas(All(), StatusCall([&](EngineLoop* loop) {
                 loop->EndWaiting(error);
                 return absl::OkStatus();
               }));
}

absl::Status ReplicaSet::Prefetch() {
  absl::Status first;
  for (const Replica& replica : replicas_) {
    if (replica.loop->state() != EngineState::kFailed) first.Update(replica.loop->Prefetch());
  }
  return first;
}

absl::Status ReplicaSet::Pause(const PauseRequest& request) {
  const LifecycleLock lifecycle(this, "pause", request.mode != SleepMode::kWait);
  RETURN_IF_ERROR(lifecycle.status());
  RETURN_IF_ERROR(CheckLifecycle());
  const CallScope scope(this, SetCall::kPause);
  RETURN_IF_ERROR(SettleOpenRequests(request.mode));
  const bool was_paused = Stats().paused;
  const PauseRequest of_replica = {.clear_cache = request.clear_cache};
  const Results results =
      CallReplicas(All(), StatusCall([&](EngineLoop* loop) { return loop->Pause(of_replica); }));
  absl::Status status = Sum(results).status();
  if (!status.ok()) {
    return Undo(
        status, results, [&](size_t) { return !was_paused; },
        StatusCall([](EngineLoop* loop) { return loop->Resume(); }));
  }
  return status;
}

absl::Status ReplicaSet::Resume() {
  const LifecycleLock lifecycle(this, "resume", /*ends_waits=*/true);
  RETURN_IF_ERROR(lifecycle.status());
  RETURN_IF_ERROR(CheckLifecycle());
  return Sum(CallReplicas(All(), StatusCall([](EngineLoop* loop) { return loop->Resume(); }))).status();
}

absl::StatusOr<int32_t> ReplicaSet::ResizeKvCache(int32_t total_blocks) {
  const LifecycleLock lifecycle(this, "a change of the KV cache's size", /*ends_waits=*/false);
  RETURN_IF_ERROR(lifecycle.status());
  const auto count = static_cast<int32_t>(replicas_.size());
  const int32_t share = total_blocks / count + (total_blocks % count > 0 ? 1 : 0);
  std::vector<int32_t> before, mapped(replicas_.size(), 0);
  for (const Replica& replica : replicas_) before.push_back(replica.loop->Stats().mapped_blocks);
  const auto resize = [&](EngineLoop* loop, size_t i, int32_t blocks) -> absl::StatusOr<TransitionReport> {
    ASSIGN_OR_RETURN(mapped[i], loop->ResizeKvCache(blocks));
    return TransitionReport();
  };
  const Results results =
      CallReplicas(All(), [&](EngineLoop* loop, size_t i) { return resize(loop, i, share); });
  if (absl::Status status = Sum(results).status(); !status.ok()) {
    return Undo(
        status, results, [](size_t) { return true; },
        [&](EngineLoop* loop, size_t i) { return resize(loop, i, before[i]); });
  }
  return std::accumulate(mapped.begin(), mapped.end(), 0);
}

absl::Status ReplicaSet::ResetPrefixCache(bool preempt_running) {
  const LifecycleLock lifecycle(this, "reset_prefix_cache", /*ends_waits=*/false);
  RETURN_IF_ERROR(lifecycle.status());
  const Results results = CallReplicas(
      All(), StatusCall([=](EngineLoop* loop) { return loop->ResetPrefixCache(preempt_running); }));
  {
    absl::MutexLock lock(&mu_);
    for (size_t i = 0; i < replicas_.size(); ++i) router_.Forget(static_cast<int>(i));
  }
  return Sum(results).status();
}

// No replica will get to serve by itself.
bool ReplicaSet::NobodyServes() const {
  return std::all_of(replicas_.begin(), replicas_.end(), [](const Replica& replica) {
    const EngineState state = replica.loop->state();
    return state == EngineState::kAsleep || state == EngineState::kPaused || state == EngineState::kFailed;
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
    NoteChange();
    // Only then do the replicas drain: until the last request has ended, each takes what another one loses.
    const auto drained = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
      return entries_.empty() || stopping_ || NobodyServes();
    };
    AwaitFor(drained, grace);
    stopping_ = true;
    NoteChange();
  }
  mail_.Wake();
  RunTogether(replicas_.size(), [&](size_t i) { replicas_[i].loop->DrainAndStop(absl::ZeroDuration()); });
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
