// SharedDevices' part for carrying out a decision: each has a thread while it lasts.

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/memory_tags.h"
#include "coordinator/residency/shared_devices.h"

namespace somnus {
namespace {

// What a decision lets a sleep keep, as its request says it.
std::optional<int64_t> MaxKept(const ResidencyDecision& decision) {
  if (decision.max_kept_bytes == kNoBudget) return std::nullopt;
  return decision.max_kept_bytes;
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
  if (decision.action == ResidencyAction::kPrefetch) {
    model->prefetched = true;
    carriers_.push_back(std::make_unique<Carrier>());
    Carrier* const carrier = carriers_.back().get();
    carrier->thread = std::thread([this, model, carrier] { Prefetch(model, carrier); });
    return;
  }
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
      return model->engine->Sleep(
          {.level = decision.level, .only_if_idle = true, .max_kept_bytes = MaxKept(decision)});
    case ResidencyAction::kDrain:
      return model->engine->Sleep(
          {.level = decision.level, .mode = SleepMode::kWait, .max_kept_bytes = MaxKept(decision)});
    case ResidencyAction::kPreempt:
      return model->engine->Sleep(
          {.level = decision.level, .mode = SleepMode::kKeep, .max_kept_bytes = MaxKept(decision)});
    case ResidencyAction::kDropBackup:
      return model->engine->Sleep({.level = 2});
    case ResidencyAction::kPrefetch:
      break;  // which is no transition
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

// A hint: whatever becomes of it, the model can be woken.
void SharedDevices::Prefetch(Model* model, Carrier* carrier) {
  const absl::Status status = model->engine->Prefetch();
  if (!status.ok() && !absl::IsFailedPrecondition(status))
    LogWarning("{}: its weights are not prefetched: {}", model->options.name, std::string(status.message()));
  absl::MutexLock lock(&mu_);
  carrier->ended = true;
}

void SharedDevices::NoteHostBytes(Model* model, const TransitionReport& report) {
  if (report.ranks.empty()) return;
  model->held_bytes = model->held_kv_bytes = 0;
  for (const RankReport& rank : report.ranks) {
    for (const auto& [tag, bytes] : rank.tags) {
      model->held_bytes += bytes.host_bytes;
      if (tag == kKvCacheTag) model->held_kv_bytes += bytes.host_bytes;
    }
  }
}

void SharedDevices::NoteWakeUp(Model* model, const absl::StatusOr<TransitionReport>& report,
                               absl::Duration time) {
  ++model->num_wake_ups;
  model->last_wake_up = report;
  if (report.ok()) {
    if (report->changed()) model->wake_up_time = time;
    NoteHostBytes(model, *report);
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
    model->prefetched = false;
    NoteHostBytes(model, *report);
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
