#include "coordinator/replicas/set_sleep.h"

#include <algorithm>
#include <cstdint>

#include "base/memory_tags.h"
#include "base/request_bounds.h"
#include "base/status_macros.h"
#include "coordinator/executor/memory_check.h"
#include "coordinator/replicas/replica_calls.h"
#include "coordinator/replicas/set_call.h"

namespace somnus {
namespace {

// The tags that a wake-up has to bring back to undo the sleep.
std::vector<std::string> Released(const SleepSpec& spec, const Residency& before) {
  std::vector<std::string> tags = before.ToSleep(spec);
  std::erase_if(tags, [&](const std::string& tag) { return before.state(tag) != TagState::kResident; });
  return tags;
}

// Whether the sleep would lose weights that no file has.
bool LosesOnlyCopy(const ReplicaLoops& loops, const SleepSpec& spec) {
  if (spec.level < kMaxSleepLevel) return false;
  for (const EngineStats& stats : loops.Stats()) {
    if (stats.state == EngineState::kFailed || !stats.only_copy) continue;
    const std::vector<std::string> tags = stats.residency.ToSleep(spec);
    if (std::find(tags.begin(), tags.end(), kWeightsTag) != tags.end()) return true;
  }
  return false;
}

// The share of each replica: as much as the replica would keep, in the order of the replicas; the last
// replicas have to do with less.
std::vector<std::optional<int64_t>> ShareKeptBytes(const ReplicaLoops& loops,
                                                   std::optional<int64_t> max_kept_bytes) {
  std::vector<std::optional<int64_t>> shares(loops.size());
  if (!max_kept_bytes.has_value()) return shares;
  int64_t left = *max_kept_bytes;
  for (size_t i = 0; i < loops.size(); ++i) {
    const bool last = i + 1 == loops.size();
    shares[i] = last ? left : std::min(left, loops.loop(i).Stats().keepable_bytes);
    left -= *shares[i];
  }
  return shares;
}

// Tells the observer, if the transition has changed anything.
void NoteTransition(const SetParts& parts, bool wakes, MonotonicTime began, const TransitionReport& report) {
  if (parts.observer == nullptr || !report.changed()) return;
  TransitionEvent event;
  event.wakes = wakes;
  event.level = parts.board.Stats().sleep_level;
  event.duration = parts.options.monotonic_now() - began;
  event.report = report;
  parts.observer->OnTransition(event);
}

// ResourceExhausted: the memory does not suffice for what sleeps of these tags on all replicas together. Each
// replica checks the memory of its own ranks, and the replicas of one host might all find enough memory. A
// replica that does not say what the wake-up takes finds out by itself.
absl::Status CheckMemoryToWake(const SetParts& parts, const std::vector<std::string>& tags) {
  std::vector<std::vector<RankNeed>> needs(parts.loops.size());
  ReplicaCalls(parts).Run([&](EngineLoop* loop, size_t i) -> absl::StatusOr<TransitionReport> {
    ASSIGN_OR_RETURN(needs[i], loop->PlanWakeUp(tags));
    return TransitionReport();
  });
  return CheckMemoryOfReplicas(needs);
}

// Sleeps at once; open requests have been settled.
absl::StatusOr<TransitionReport> SleepAll(const SetParts& parts, const SleepRequest& request) {
  const MonotonicTime began = parts.options.monotonic_now();
  const std::vector<Residency> before = parts.loops.Residencies();
  const std::vector<std::optional<int64_t>> kept_bytes = ShareKeptBytes(parts.loops, request.max_kept_bytes);
  ReplicaCalls calls(parts);
  calls.Run([&](EngineLoop* loop, size_t i) {
    return loop->Sleep(
        {.level = request.level, .tags = request.tags, .force = true, .max_kept_bytes = kept_bytes[i]});
  });
  absl::StatusOr<TransitionReport> report = calls.Sum();
  if (report.ok()) {
    NoteTransition(parts, /*wakes=*/false, began, *report);
    return report;
  }
  const SleepSpec spec = {request.level, request.tags};
  return calls.Undo(
      report.status(), [&](size_t i) { return !Released(spec, before[i]).empty(); },
      [&](EngineLoop* loop, size_t i) { return loop->WakeUp(Released(spec, before[i])); });
}

absl::StatusOr<TransitionReport> WakeAll(const SetParts& parts, const std::vector<std::string>& tags,
                                         const ReplicaCalls::Call& call) {
  const CallScope scope(parts, SetCall::kWakeUp);
  RETURN_IF_ERROR(CheckMemoryToWake(parts, tags));
  const MonotonicTime began = parts.options.monotonic_now();
  const std::vector<Residency> before = parts.loops.Residencies();
  ReplicaCalls calls(parts);
  calls.Run(call);
  absl::StatusOr<TransitionReport> report = calls.Sum();
  if (report.ok()) {
    NoteTransition(parts, /*wakes=*/true, began, *report);
    return report;
  }
  return calls.Undo(
      report.status(), [&](size_t i) { return !before[i].ToWake(tags).empty(); },
      [&](EngineLoop* loop, size_t i) {
        return loop->Sleep({.level = before[i].level(), .tags = before[i].ToWake(tags), .force = true});
      });
}

}  // namespace

absl::StatusOr<TransitionReport> SleepReplicas(const SetParts& parts, const SleepRequest& request) {
  const CallTurn turn(parts, "sleep", request.mode != SleepMode::kWait && !request.only_if_idle);
  RETURN_IF_ERROR(turn.Check());
  if (request.only_if_idle && (parts.queue.num_open() > 0 || parts.board.state() != EngineState::kAwake))
    return absl::AbortedError("the engine is not idle");
  CallScope scope(parts, request.mode == SleepMode::kWait ? SetCall::kPause : SetCall::kSleep);
  if (!request.force && !request.spares_only_copy &&
      LosesOnlyCopy(parts.loops, {request.level, request.tags}))
    return absl::FailedPreconditionError(kForceLosesOnlyCopy);
  RETURN_IF_ERROR(scope.Settle(request.mode));
  if (request.spares_only_copy && request.level >= kMaxSleepLevel && parts.board.Stats().only_copy)
    return absl::AbortedError(kSparesOnlyCopy);
  scope.Set(SetCall::kSleep);
  return SleepAll(parts, request);
}

absl::StatusOr<TransitionReport> WakeReplicas(const SetParts& parts, const std::vector<std::string>& tags,
                                              std::optional<bool> load_weights) {
  const CallTurn turn(parts, "wake_up", /*ends_waits=*/true);
  RETURN_IF_ERROR(turn.Check());
  return WakeAll(parts, tags, [&](EngineLoop* loop, size_t) { return loop->WakeUp(tags, load_weights); });
}

absl::StatusOr<TransitionReport> WakeReplicasForArrivals(const SetParts& parts) {
  const CallTurn turn(parts, "wake_up", /*ends_waits=*/false);
  RETURN_IF_ERROR(turn.Check());
  return WakeAll(parts, {}, [](EngineLoop* loop, size_t) { return loop->WakeForArrivals(); });
}

}  // namespace somnus
