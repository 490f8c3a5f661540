// SharedDevices' part for carrying out a decision: each has a thread while it lasts.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "coordinator/residency/shared_devices.h"

namespace somnus {
namespace {

int64_t BackedUpBytes(const TransitionReport& report) {
  int64_t sum = 0;
  for (const RankReport& rank : report.ranks) {
    for (const auto& [tag, bytes] : rank.tags) sum += bytes.backed_up_bytes;
  }
  return sum;
}

}  // namespace

void SharedDevices::Begin(const ResidencyDecision& decision) {
  Model* const model = models_[decision.model].get();
  LogInfo("{}: {} ({}{})", model->options.name, ResidencyActionName(decision.action),
          ResidencyReasonName(decision.reason),
          decision.for_model == decision.model
              ? ""
              : absl::StrCat(", for ", models_[decision.for_model]->options.name));
  if (model->options.on_decision) model->options.on_decision(decision);
  model->decision = decision;
  const int64_t id = ++model->decision_id;
  carriers_.push_back(std::make_unique<Carrier>());
  Carrier* const carrier = carriers_.back().get();
  carrier->thread =
      std::thread([this, model, decision, id, carrier] { CarryOut(model, decision, id, carrier); });
}

void SharedDevices::JoinEnded() {
  std::erase_if(carriers_, [](const std::unique_ptr<Carrier>& carrier) {
    if (carrier->ended) carrier->thread.join();
    return carrier->ended;
  });
}

absl::StatusOr<TransitionReport> SharedDevices::Call(Model* model, const ResidencyDecision& decision) {
  switch (decision.action) {
    case ResidencyAction::kWake: {
      bool wanted;
      {
        absl::MutexLock lock(&mu_);
        wanted = model->num_wanted > 0;
      }
      return wanted ? model->engine->WakeUp({}) : model->engine->WakeForArrivals();
    }
    case ResidencyAction::kSleepIfIdle:
      return model->engine->Sleep({.level = decision.level, .only_if_idle = true});
    case ResidencyAction::kDrain:
      return model->engine->Sleep({.level = decision.level, .mode = SleepMode::kWait});
    case ResidencyAction::kPreempt:
      return model->engine->Sleep({.level = decision.level, .mode = SleepMode::kKeep});
    case ResidencyAction::kDropBackup:
      return model->engine->Sleep({.level = 2});
  }
  return absl::InternalError("no such action");
}

void SharedDevices::CarryOut(Model* model, const ResidencyDecision& decision, int64_t id, Carrier* carrier) {
  const MonotonicTime begin = options_.now();
  const absl::StatusOr<TransitionReport> report = Call(model, decision);
  {
    absl::MutexLock lock(&mu_);
    const absl::Duration time = options_.now() - begin;
    if (decision.action == ResidencyAction::kWake) {
      NoteWakeUp(model, report, time);
    } else {
      // A drain's time is that of requests.
      const bool measured = decision.action != ResidencyAction::kDrain;
      NoteSleep(model, report, measured ? time : model->sleep_time);
    }
    // A later decision may have taken its place: a preemption that of a drain.
    if (model->decision_id == id) model->decision.reset();
    carrier->ended = true;
  }
  mail_.Wake();
}

void SharedDevices::NoteWakeUp(Model* model, const absl::StatusOr<TransitionReport>& report,
                               absl::Duration time) {
  ++model->num_wake_ups;
  model->last_wake_up = report;
  if (report.ok()) {
    if (report->changed()) model->wake_up_time = time;
    if (!report->ranks.empty()) model->held_bytes = BackedUpBytes(*report);
    model->awake_since = options_.now();
    model->retry_delay = options_.first_retry;
    model->wake_up_error = absl::OkStatus();
    if (model->options.on_awake && model->waiting_since < model->awake_since)
      model->options.on_awake(model->awake_since - model->waiting_since);
    return;
  }
  model->retry_at = options_.now() + model->retry_delay;
  model->retry_delay = std::min(2 * model->retry_delay, options_.last_retry);
  if (absl::IsFailedPrecondition(report.status())) return;  // paused, or about to end
  model->wake_up_error = absl::UnavailableError(
      absl::StrCat("The model sleeps and could not be woken: ", report.status().message()));
  LogWarning("{}: could not be woken: {}", model->options.name, std::string(report.status().message()));
}

void SharedDevices::NoteSleep(Model* model, const absl::StatusOr<TransitionReport>& report,
                              absl::Duration time) {
  if (report.ok()) {
    model->sleep_time = time;
    if (!report->ranks.empty()) model->held_bytes = BackedUpBytes(*report);
    return;
  }
  // A request has come meanwhile, or another call has ended the wait: it stays as if it had just woken.
  const bool aborted = absl::IsAborted(report.status());
  model->awake_since = options_.now() + (aborted ? absl::ZeroDuration() : options_.first_retry);
  if (aborted) return;
  if (absl::IsFailedPrecondition(report.status())) return;  // it is about to end
  LogWarning("{}: could not go to sleep: {}", model->options.name, std::string(report.status().message()));
}

}  // namespace somnus
