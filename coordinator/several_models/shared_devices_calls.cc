// SharedDevices' part for what clients and operators ask of one of the models.

#include <algorithm>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "base/memory_tags.h"
#include "base/status_macros.h"
#include "coordinator/engine/caller.h"
#include "coordinator/engine/engine_report.h"
#include "coordinator/residency/declined.h"
#include "coordinator/several_models/host_memory.h"
#include "coordinator/several_models/shared_devices.h"

namespace somnus {
namespace {

constexpr char kAboutToEnd[] = "The server is about to end.";

// Waits, with `mu` held, until the condition holds or the client of this thread's call has left.
template <typename Condition>
void AwaitForCaller(absl::Mutex* mu, const Condition& condition) ABSL_NO_THREAD_SAFETY_ANALYSIS {
  if (CurrentCaller() == nullptr) return mu->Await(absl::Condition(&condition));
  while (!condition() && CheckCaller().ok()) mu->AwaitWithTimeout(absl::Condition(&condition), kCallerLook);
}

bool NamesWeights(const std::vector<std::string>& tags) {
  return tags.empty() || std::find(tags.begin(), tags.end(), kWeightsTag) != tags.end();
}

}  // namespace

absl::Status SharedDevices::Submit(Model* model, std::vector<EngineRequest> requests) {
  const auto count = static_cast<int64_t>(requests.size());
  {
    absl::MutexLock lock(&mu_);
    if (model->held_asleep && options_.arrivals == SleepArrivals::kReject)
      return absl::FailedPreconditionError("The engine is asleep; requests are refused until it is woken.");
    if (!IsResident(model->engine->state()) && model->retries->Refuses(options_.now()))
      return model->retries->error();
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

absl::Status SharedDevices::MakeBackupRoom(Model* model) {
  const auto deadline = waits_.insert(options_.now() + options_.operator_wait);
  const absl::Cleanup forget = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { waits_.erase(deadline); };
  std::set<int> told;
  while (!stopped_) {
    std::vector<ModelView> views = Views();
    for (const int other : told) views[other].level_is_asked = true;  // it could not drop its backup
    const BackupRoom room = PlanBackupRoom(options_.residency, views, model->index);
    if (room.is_free) return absl::OkStatus();
    if (room.missing > 0 || options_.now() >= *deadline) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "--host-memory-budget: at level 1 the weights of ", model->options.name, " take ", room.needed,
          " bytes of host memory, and ", room.missing,
          " are missing; other models' backups hold it, or are kept as was asked; level 2 takes none"));
    }
    for (const int other : room.drops) {
      told.insert(other);
      Begin({ResidencyAction::kDropBackup, ResidencyReason::kHostMemory, other, 2, model->index});
    }
    const auto over = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
      const bool drops = std::any_of(models_.begin(), models_.end(), [](const std::unique_ptr<Model>& one) {
        return one->decision.has_value() && one->decision->action == ResidencyAction::kDropBackup;
      });
      return stopped_ || !drops || options_.now() >= *deadline;
    };
    mu_.Await(absl::Condition(&over));
  }
  return DeclinedError(kAboutToEnd);
}

absl::StatusOr<TransitionReport> SharedDevices::SleepByOperator(Model* model, const SleepRequest& request) {
  SleepRequest bounded = request;
  bool backs_up = false, was_staged = false, was_held = false;
  {
    absl::MutexLock lock(&mu_);
    EndStage(model, model->engine->state());
    backs_up = request.level == 1 && NamesWeights(request.tags) &&
               model->engine->Stats().residency.state(kWeightsTag) == TagState::kResident;
    if (backs_up) RETURN_IF_ERROR(MakeBackupRoom(model));
    was_staged = std::exchange(model->staged, false);
    ++model->num_holds;  // of a sleep of some tags the others stay
    was_held = std::exchange(model->held_asleep, options_.arrivals != SleepArrivals::kWake);
    const std::vector<ModelView> views = Views();
    const int64_t kept = MaxKeptBytes(options_.residency, views, model->index);
    if (kept != kNoBudget && request.level == 1) {
      model->promised_kept_bytes = std::min(kept, views[model->index].kv_bytes);
      bounded.max_kept_bytes = model->promised_kept_bytes;
    }
    model->num_promised_backups += backs_up;
  }
  absl::StatusOr<TransitionReport> report = model->engine->Sleep(bounded);
  {
    absl::MutexLock lock(&mu_);
    model->num_promised_backups -= backs_up;
    model->promised_kept_bytes = 0;
    --model->num_holds;
    model->staged = (was_staged || report.ok()) && !model->engine->Stats().residency.fully_asleep();
    if (report.ok()) {
      model->retries->Restart();  // a level 2 has given up the backup that could not be read
      model->held_asleep = options_.arrivals != SleepArrivals::kWake;  // a wake-up before it has ended that
      model->level_is_asked = request.level == 1;
      model->sleeps_for.clear();
      NoteSleep(model, report, model->sleep_time);
    } else {
      model->held_asleep = was_held && !IsResident(model->engine->state());
    }
  }
  mail_.Wake();
  return report;
}

absl::Status SharedDevices::NoRoom(const Model& model) {
  const std::vector<ModelView> views = Views();
  const ModelView& view = views[model.index];
  return absl::UnavailableError(absl::StrCat(
      "no room within ", absl::FormatDuration(options_.operator_wait), ": ", model.options.name, " needs ",
      std::max<int64_t>(0, view.device_bytes - view.resident_bytes), " bytes of --device-memory-budget, and ",
      FreeDeviceBytes(options_.residency, views),
      " are free; other models are awake, and are pinned, held by an operator, or have requests"));
}

// What an operator's call has left half awake waits for the next one. One that has woken nothing holds
// nothing that was not held before, or by a sleep that has come since.
void SharedDevices::NoteStage(Model* model, bool was_held) {
  const EngineStats stats = model->engine->Stats();
  const bool sleeps = !IsResident(stats.state);
  model->staged = sleeps && !stats.residency.fully_asleep();
  const bool is_held = model->staged || was_held || model->held_asleep;
  model->held_asleep = sleeps && is_held && options_.arrivals != SleepArrivals::kWake;
}

absl::StatusOr<TransitionReport> SharedDevices::WakeByOperator(Model* model,
                                                               const std::vector<std::string>& tags,
                                                               std::optional<bool> load_weights,
                                                               bool stages) {
  absl::MutexLock lock(&mu_);
  const auto deadline = waits_.insert(options_.now() + options_.operator_wait);
  const absl::Cleanup forget = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { waits_.erase(deadline); };
  const auto given_up = [&] { return options_.now() >= *deadline; };
  const auto is_next = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return stopped_ || !model->wanted.has_value() || given_up();
  };
  AwaitForCaller(&mu_, is_next);
  if (stopped_) return DeclinedError(kAboutToEnd);
  RETURN_IF_ERROR(CheckCaller());
  if (model->wanted.has_value()) return NoRoom(*model);
  const bool was_held = model->held_asleep;
  if (stages) model->held_asleep = false;
  model->retries->Restart();
  model->wanted = {.tags = tags,
                   .load_weights = load_weights,
                   .stages = stages,
                   .was_held = was_held,
                   .id = ++model->last_wake_id,
                   .result = {}};
  mail_.Wake();
  const auto over = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const bool resident = !model->decision.has_value() && IsResident(model->engine->state());
    const bool has_no_room = given_up() && !IsCarriedOut(*model);
    return stopped_ || resident || model->wanted->result.has_value() || has_no_room;
  };
  AwaitForCaller(&mu_, over);
  // A wake-up that is being carried out goes on without its client.
  const bool is_dropped = !over() && !IsCarriedOut(*model);
  if (!is_dropped) mu_.Await(absl::Condition(&over));
  absl::StatusOr<TransitionReport> report = DeclinedError(kAboutToEnd);
  if (is_dropped) {
    report = absl::CancelledError(kAbandoned);
  } else if (model->wanted->result.has_value()) {
    report = *std::move(model->wanted->result);
  } else if (!stopped_ && given_up() && !IsResident(model->engine->state())) {
    report = NoRoom(*model);
  } else if (!stopped_) {
    // Ends a pause, and says that all is resident. The model is held meanwhile.
    mu_.Unlock();
    report = model->engine->WakeUp(tags, load_weights);
    mu_.Lock();
  }
  model->wanted.reset();
  if (stages) NoteStage(model, was_held);
  mail_.Wake();
  return report;
}

absl::Status SharedDevices::Health(const Model& model) const {
  if (model.engine->Health().ok()) return absl::OkStatus();
  const EngineStats stats = Stats(model);
  if (stats.request_wakes && stats.wake_up_error.empty()) return absl::OkStatus();
  absl::MutexLock lock(&mu_);
  // Once no request waits and the pause is over, the next request is a new try.
  const bool tries_next = model.num_open == 0 && options_.now() >= model.retries->retry_at();
  if (stats.request_wakes && tries_next) return absl::OkStatus();
  return absl::UnavailableError(ReportState(stats).Line());
}

EngineStats SharedDevices::Stats(const Model& model) const {
  EngineStats stats = model.engine->Stats();
  absl::MutexLock lock(&mu_);
  stats.model_flag = model.options.name;
  stats.wake_up_error = std::string(model.retries->error().message());
  const bool sleeps = stats.state == EngineState::kFallingAsleep || stats.state == EngineState::kAsleep ||
                      stats.state == EngineState::kWaking;
  const bool drains = model.decision.has_value() && stats.state == EngineState::kPausing;
  const bool replaced = stats.needs_weights || (model.staged && stats.residency.weights_stale());
  stats.request_wakes = (sleeps || drains) && !model.held_asleep && !stats.paused && !replaced;
  if ((sleeps || drains) && !model.held_asleep && !model.sleeps_for.empty())
    stats.note.why = model.sleeps_for;
  const bool waits = model.num_open > 0 || (model.wanted.has_value() && !IsCarriedOut(model));
  if (stats.state == EngineState::kAsleep && waits) stats.awaits_room_of = AwakeModels();
  return stats;
}

std::string SharedDevices::AwakeModels() const {
  std::string names;
  for (const std::unique_ptr<Model>& one : models_) {
    if (one->engine != nullptr && IsResident(one->engine->state()))
      absl::StrAppend(&names, names.empty() ? "" : ", ", one->options.name);
  }
  return names;
}

}  // namespace somnus
