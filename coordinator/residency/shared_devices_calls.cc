// SharedDevices' part for what clients and operators ask of one of the models.

#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/residency/shared_devices.h"

namespace somnus {

absl::Status SharedDevices::Submit(Model* model, std::vector<EngineRequest> requests) {
  const auto count = static_cast<int64_t>(requests.size());
  {
    absl::MutexLock lock(&mu_);
    if (model->held_asleep && options_.arrivals == SleepArrivals::kReject)
      return absl::FailedPreconditionError("The engine is asleep; requests are refused until it is woken.");
    model->num_open += count;
    model->last_used = options_.now();
  }
  model->deadlines->Watch(&requests);
  absl::Status status = model->engine->SubmitAll(std::move(requests));
  if (!status.ok()) {
    NoteEnded(model, count);
    return status;
  }
  mail_.Wake();
  return status;
}

void SharedDevices::NoteEnded(Model* model, int64_t num_requests) {
  {
    absl::MutexLock lock(&mu_);
    model->num_open -= num_requests;
    model->last_used = options_.now();
    if (model->num_open > 0) return;
  }
  mail_.Wake();
}

absl::StatusOr<TransitionReport> SharedDevices::SleepByOperator(Model* model, const SleepRequest& request) {
  SleepRequest bounded = request;
  {
    absl::MutexLock lock(&mu_);
    model->held_asleep = options_.arrivals != SleepArrivals::kWake;
    const int64_t kept = MaxKeptBytes(options_.residency, Views(), model->index);
    if (kept != kNoBudget) bounded.max_kept_bytes = kept;
  }
  absl::StatusOr<TransitionReport> report = model->engine->Sleep(bounded);
  {
    absl::MutexLock lock(&mu_);
    if (report.ok()) {
      NoteSleep(model, report, model->sleep_time);
    } else if (IsResident(model->engine->state())) {
      model->held_asleep = false;
    }
  }
  mail_.Wake();
  return report;
}

absl::StatusOr<TransitionReport> SharedDevices::WakeByOperator(Model* model) {
  {
    absl::MutexLock lock(&mu_);
    model->held_asleep = false;
    model->retry_at = -absl::InfiniteDuration();
    model->retry_delay = options_.first_retry;
    ++model->num_wanted;
    const int64_t before = model->num_wake_ups;
    const auto wait = waits_.insert(options_.now() + options_.operator_wait);
    mail_.Wake();
    const auto over = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
      const bool resident = !model->decision.has_value() && IsResident(model->engine->state());
      return stopped_ || resident || model->num_wake_ups != before || options_.now() >= *wait;
    };
    mu_.Await(absl::Condition(&over));
    const bool gives_up = options_.now() >= *wait;
    waits_.erase(wait);
    --model->num_wanted;
    if (model->num_wake_ups != before) return model->last_wake_up;
    if (stopped_) return absl::FailedPreconditionError("The server is about to end.");
    if (gives_up && !IsResident(model->engine->state())) {
      return absl::ResourceExhaustedError(
          absl::StrCat("no room within ", absl::FormatDuration(options_.operator_wait),
                       ": other models are awake, and are pinned or have requests"));
    }
  }
  return model->engine->WakeUp({});  // ends a pause, and says that all is resident
}

absl::Status SharedDevices::Health(const Model& model) const {
  const absl::Status health = model.engine->Health();
  if (health.ok()) return health;
  absl::MutexLock lock(&mu_);
  const EngineState state = model.engine->state();
  const bool sleeps =
      state == EngineState::kFallingAsleep || state == EngineState::kAsleep || state == EngineState::kWaking;
  const bool drains = model.decision.has_value() && state == EngineState::kPausing;
  if ((!sleeps && !drains) || model.held_asleep) return health;
  const EngineStats stats = model.engine->Stats();
  return stats.paused || stats.residency.weights_stale() ? health : model.wake_up_error;
}

}  // namespace somnus
