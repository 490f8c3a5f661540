#include "coordinator/several_models/transitions.h"

#include <algorithm>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/memory_tags.h"
#include "base/request_bounds.h"
#include "coordinator/engine/caller.h"
#include "coordinator/residency/declined.h"

namespace somnus {
namespace {

// The bytes that a decision lets a sleep keep, in the form of SleepRequest.
std::optional<int64_t> MaxKept(const ResidencyDecision& decision) {
  if (decision.max_kept_bytes == kNoBudget) return std::nullopt;
  return decision.max_kept_bytes;
}

bool PutsToSleep(ResidencyAction action) {
  return action == ResidencyAction::kSleepIfIdle || action == ResidencyAction::kDrain ||
         action == ResidencyAction::kPreempt || action == ResidencyAction::kRelease;
}

// Every rank has released its weights in this sleep. A sleep that a loss interrupts after its commit, and
// that ends with the recovery, reports no rank: the rank that came since has no backup.
bool AllReleasedWeights(const TransitionReport& report) {
  return !report.ranks.empty() &&
         std::all_of(report.ranks.begin(), report.ranks.end(), [](const RankReport& rank) {
           const auto weights = rank.tags.find(kWeightsTag);
           return weights != rank.tags.end() && weights->second.freed_bytes > 0;
         });
}

}  // namespace

void Transitions::Begin(const ResidencyDecision& decision) {
  ModelRecord* const model = &models_.at(decision.model);
  ModelTransition& transition = model->transition;
  const bool for_itself = decision.for_model == decision.model;
  const std::string text =
      absl::StrCat(ResidencyActionName(decision.action), " (", ResidencyReasonName(decision.reason),
                   for_itself ? "" : ", for " + models_.at(decision.for_model).options.name, ")");
  LogInfo("{}: {}", model->options.name, text);
  if (PutsToSleep(decision.action)) transition.sleeps_for = "residency: " + text;
  if (model->options.on_decision) model->options.on_decision(decision);
  if (decision.action == ResidencyAction::kStay) {
    transition.stay_told = true;
    return;
  }
  if (decision.action == ResidencyAction::kPrefetch) {
    transition.prefetched = true;
    (void)threads_.Carry([this, model] { Prefetch(model); });
    return;
  }
  transition.decision.reset();
  const int64_t id = transition.Begin(decision, model->Wake());
  if (threads_.Carry([this, model, decision, id] { CarryOut(model, decision, id); })) return;
  transition.NoteUntried(models_.now(), models_.options().retry.first_pause);
}

absl::StatusOr<TransitionReport> Transitions::CallWakeUp(ModelRecord* model) {
  std::optional<OperatorWake> wake;
  {
    absl::MutexLock lock(&models_.mu);
    wake = model->transition.carried;
  }
  if (!wake.has_value()) return model->engine->WakeForArrivals();
  const CallerScope scope({.name = wake->call.client, .has_left = [] { return false; }});
  return model->engine->WakeUp(wake->call.tags, wake->call.load_weights);
}

absl::StatusOr<TransitionReport> Transitions::SleepAsDeepAsNeeded(ModelRecord* model, SleepRequest request) {
  absl::StatusOr<TransitionReport> report = model->engine->Sleep(request);
  const bool lacks_room = request.level < kMaxSleepLevel && absl::IsResourceExhausted(report.status());
  if (!lacks_room || model->engine->Stats().only_copy) return report;
  TellNoRoom(model, report.status());
  request.level = kMaxSleepLevel;
  request.spares_only_copy = true;
  return model->engine->Sleep(request);
}

void Transitions::TellNoRoom(ModelRecord* model, const absl::Status& error) {
  absl::MutexLock lock(&models_.mu);
  if (std::exchange(model->transition.no_room_told, true)) return;
  LogWarning("{}: sleeps at level {} until its backup finds room again: {}", model->options.name,
             kMaxSleepLevel, std::string(error.message()));
}

absl::StatusOr<TransitionReport> Transitions::Call(ModelRecord* model, const ResidencyDecision& decision) {
  SleepRequest request;
  request.level = decision.level;
  request.max_kept_bytes = MaxKept(decision);
  request.spares_only_copy = true;  // an update may have come since the decision
  switch (decision.action) {
    case ResidencyAction::kWake:
      return CallWakeUp(model);
    case ResidencyAction::kSleepIfIdle:
      request.only_if_idle = true;
      return SleepAsDeepAsNeeded(model, request);
    case ResidencyAction::kDrain:
      request.mode = SleepMode::kWait;
      return SleepAsDeepAsNeeded(model, request);
    case ResidencyAction::kPreempt:
    case ResidencyAction::kDropBackup:
    case ResidencyAction::kRelease:
      return SleepAsDeepAsNeeded(model, request);
    case ResidencyAction::kPrefetch:
    case ResidencyAction::kStay:
      break;  // no transitions
  }
  return absl::InternalError("no such action");
}

MonotonicTime Transitions::WaitingSince(const ModelRecord& model) {
  absl::MutexLock lock(&models_.mu);
  return model.waiting_since;
}

void Transitions::CarryOut(ModelRecord* model, const ResidencyDecision& decision, int64_t id) {
  const MonotonicTime begin = models_.now();
  // The requests may be answered before the end of the call is noted.
  const MonotonicTime waiting_since = WaitingSince(*model);
  const absl::StatusOr<TransitionReport> report = Call(model, decision);
  absl::Status given_up;
  {
    absl::MutexLock lock(&models_.mu);
    const absl::Duration time = models_.now() - begin;
    if (decision.action == ResidencyAction::kWake) {
      given_up = NoteWakeUp(model, report, time, std::min(waiting_since, model->waiting_since));
    } else {
      NoteSleep(model, report);
      if (report.ok()) model->transition.NoteSleepTime(decision.action, time);
    }
    model->transition.End(id);
  }
  if (!given_up.ok()) model->engine->EndWaiting(given_up);
}

// A prefetch is a hint: the model can be woken whether the prefetch succeeds or not.
void Transitions::Prefetch(ModelRecord* model) {
  const absl::Status status = model->engine->Prefetch();
  if (!status.ok() && !IsDeclined(status))
    LogWarning("{}: its weights are not prefetched: {}", model->options.name, std::string(status.message()));
}

absl::Status Transitions::NoteWakeUp(ModelRecord* model, const absl::StatusOr<TransitionReport>& report,
                                     absl::Duration time, MonotonicTime waiting_since) {
  ModelTransition& transition = model->transition;
  const std::optional<OperatorWake>& carried = transition.carried;
  const bool in_part = carried.has_value() && !carried->call.tags.empty();
  if (carried.has_value()) model->operators.NoteResult(*carried, report, *model->engine);
  if (!report.ok()) return NoteFailedWakeUp(model, report.status());
  if (report->changed() && !in_part) transition.wake_up_time = time;
  transition.awake_since = models_.now();
  transition.retries.NoteWoken();
  transition.stay_told = false;
  if (model->options.on_switch && !in_part && waiting_since < transition.awake_since) {
    const absl::Duration waited = transition.awake_since - waiting_since;
    const absl::Duration wake_up = std::min(time, waited);
    model->options.on_switch({.room = waited - wake_up, .wake_up = wake_up});
  }
  return absl::OkStatus();
}

absl::Status Transitions::NoteFailedWakeUp(ModelRecord* model, const absl::Status& error) {
  WakeRetries& retries = model->transition.retries;
  if (IsDeclined(error)) {
    retries.NoteDeclined(models_.now());
    return absl::OkStatus();
  }
  retries.NoteFailed(models_.now(), error);
  LogWarning("{}: could not be woken{}: {}", model->options.name,
             retries.gave_up() ? ", and requests are refused" : "", std::string(error.message()));
  return retries.gave_up() ? retries.error() : absl::OkStatus();
}

void Transitions::NoteSleep(ModelRecord* model, const absl::StatusOr<TransitionReport>& report) {
  ModelTransition& transition = model->transition;
  if (report.ok()) {
    transition.prefetched = false;
    transition.failed_sleeps.Restart();
    const EngineStats stats = model->engine->Stats();
    if (stats.sleep_level < kMaxSleepLevel) {
      transition.no_room_told = false;
      if (AllReleasedWeights(*report)) model->backup_epoch = stats.group_epoch;
    }
    return;
  }
  // Aborted: a request has come meanwhile, or another call has ended the wait. The model stays as if the
  // model had just woken.
  const MonotonicTime now = models_.now();
  transition.awake_since = now;
  if (absl::IsAborted(report.status())) return;
  const absl::Duration pause = transition.failed_sleeps.NoteFailed(now);
  transition.awake_since += pause;
  if (IsDeclined(report.status())) return;
  LogWarning("{}: could not go to sleep, and stays awake for {} at least: {}", model->options.name,
             absl::FormatDuration(pause), std::string(report.status().message()));
}

}  // namespace somnus
