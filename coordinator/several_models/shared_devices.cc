#include "coordinator/several_models/shared_devices.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/heartbeat.h"
#include "coordinator/engine/caller.h"
#include "coordinator/engine/engine_report.h"
#include "coordinator/several_models/sharing_engine.h"

namespace somnus {

class SharedDevices::Observer : public PassingObserver {
 public:
  Observer(SharedDevices* devices, ModelRecord* model, EngineObserver* next)
      : PassingObserver(next), devices_(devices), model_(model) {}

  void OnRequestFinished(const EngineRequest& request, const FinishedRequest& end) override {
    devices_->NoteEnded(model_, 1);
    PassingObserver::OnRequestFinished(request, end);
  }

 private:
  SharedDevices* const devices_;
  ModelRecord* const model_;
};

SharedDevices::SharedDevices(SharedDevicesOptions options)
    : models_(std::move(options)),
      threads_([this] { models_.Wake(); }),
      transitions_(&models_, &threads_),
      revivals_(&models_, &threads_),
      kv_resizer_(&models_, &threads_),
      operators_(&models_, &transitions_),
      weights_(&models_, &operators_) {}

SharedDevices::~SharedDevices() { Stop(); }

std::shared_ptr<Engine> SharedDevices::Add(SharingModel options, EngineObserver* observer,
                                           const MakeEngine& make) {
  ModelRecord* const model = models_.Add(std::move(options));
  model->observer = std::make_unique<Observer>(this, model, observer);
  std::shared_ptr<Engine> engine = make(model->observer.get());
  {
    absl::MutexLock lock(&models_.mu);
    model->SetEngine(engine.get(), models_.now());
  }
  SharingCalls calls;
  calls.submit = [this, model](auto requests) { return Submit(model, std::move(requests)); };
  calls.health = [this, model] { return Health(*model); };
  calls.stats = [this, model] { return Stats(*model); };
  calls.sleep = [this, model](const SleepRequest& request) { return operators_.Sleep(model, request); };
  calls.wake_up = [this, model](const WakeUpRequest& request) {
    return operators_.WakeUp(model, {.tags = request.tags,
                                     .load_weights = request.load_weights,
                                     .stages = true,
                                     .client = BegunCaller().name});
  };
  calls.reload = [this, model](const WeightsRequest& request) { return weights_.Reload(model, request); };
  calls.update = [this, model](const WeightsRequest& request) {
    return weights_.BeginUpdate(model, request);
  };
  calls.revive = [this, model] { return revivals_.Revive(model); };
  calls.note = [this] { models_.Wake(); };
  return MakeSharingEngine(std::move(engine), std::move(calls));
}

absl::Status SharedDevices::MakeRoom() {
  int64_t left = models_.options().residency.host_memory_budget;
  for (const std::unique_ptr<ModelRecord>& model : models_.all()) {
    const EngineStats stats = model->engine->Stats();
    const bool half_asleep = stats.state == EngineState::kAsleep && SumOfTags(stats.resident_bytes) > 0;
    if (half_asleep || IsResident(stats.state)) {
      const int level = model->BackupBytes(stats) <= left ? 1 : 2;
      absl::StatusOr<TransitionReport> report =
          transitions_.SleepAsDeepAsNeeded(model.get(), {.level = level});
      if (!report.ok())
        return absl::Status(
            report.status().code(),
            absl::StrCat(model->options.name, " could not go to sleep: ", report.status().message()));
      absl::MutexLock lock(&models_.mu);
      transitions_.NoteSleep(model.get(), report);
    }
    left -= SumOfTags(model->engine->Stats().host_bytes);
  }
  return absl::OkStatus();
}

absl::Status SharedDevices::Start() {
  {
    absl::MutexLock lock(&models_.mu);
    std::vector<ModelView> views = models_.Views();
    for (const std::unique_ptr<ModelRecord>& model : models_.all()) {
      if (model->kv.is_elastic()) views[model->index].device_bytes = model->kv.LeastDeviceBytes();
    }
    const ResidencyOptions& options = models_.options().residency;
    if (const std::optional<int> large = FindModelThatNeverFits(options, views)) {
      int64_t pinned = 0;
      for (const ModelView& view : views)
        pinned += view.pinned && &view != &views[*large] ? view.device_bytes : 0;
      return absl::InvalidArgumentError(absl::StrCat(
          "--device-memory-budget: ", models_.at(*large).options.name, " takes ", views[*large].device_bytes,
          " bytes while it is awake, more than the budget of ", options.device_memory_budget,
          pinned > 0 ? absl::StrCat(" without the ", pinned, " of pinned models") : ""));
    }
  }
  thread_ = std::thread([this] { Run(); });
  return absl::OkStatus();
}

void SharedDevices::Stop() {
  models_.Stop();
  if (thread_.joinable()) thread_.join();
  threads_.Join();
}

void SharedDevices::Run() {
  const Heartbeat heartbeat("", "residency of the models");
  while (true) {
    heartbeat.Beat();
    absl::Duration wait;
    {
      absl::MutexLock lock(&models_.mu);
      if (models_.stopped()) return;
      wait = Look();
    }
    models_.WaitFor(wait);
  }
}

absl::Duration SharedDevices::Look() {
  threads_.JoinEnded();
  const MonotonicTime now = models_.now();
  std::vector<ModelView> views = models_.Views();
  const MonotonicTime share_again_at = kv_resizer_.Share(now, &views);
  const MonotonicTime revive_at = revivals_.BeginDue(now);
  const ResidencyPlan plan = PlanResidency(models_.options().residency, now, views);
  for (const ResidencyDecision& decision : plan.decisions) transitions_.Begin(decision);
  // Run takes the mutex, so calls that wait look at the time: a call that was to give up by now has looked.
  const MonotonicTime again_at =
      std::min({plan.look_again_at, share_again_at, revive_at, models_.NextDeadline(now)});
  // Clocks and waits count whole nanoseconds: a wait of less would end before its time.
  return std::max(absl::Ceil(again_at - now, absl::Nanoseconds(1)), absl::ZeroDuration());
}

absl::Status SharedDevices::Submit(ModelRecord* model, std::vector<EngineRequest> requests) {
  const auto count = static_cast<int64_t>(requests.size());
  {
    absl::MutexLock lock(&models_.mu);
    const WakeRetries& retries = model->transition.retries;
    if (model->operators.held_asleep() && models_.options().arrivals == SleepArrivals::kReject)
      return absl::FailedPreconditionError("The engine is asleep; requests are refused until it is woken.");
    if (!IsResident(model->engine->state()) && retries.Refuses(models_.now())) return retries.error();
    model->num_open += count;
    model->last_used = models_.now();
  }
  model->deadlines.Watch(&requests);
  absl::Status status = model->engine->SubmitAll(std::move(requests));
  if (!status.ok()) {
    NoteEnded(model, count);
    // The report names the model in the commands that it offers.
    return AdmitsRequests(model->engine->state()) ? status
                                                  : absl::UnavailableError(ReportState(Stats(*model)).Line());
  }
  models_.Wake();
  return status;
}

void SharedDevices::NoteEnded(ModelRecord* model, int64_t num_requests) {
  {
    absl::MutexLock lock(&models_.mu);
    model->num_open -= num_requests;
    model->last_used = models_.now();
    if (model->num_open > 0) return;
  }
  models_.Wake();
}

absl::Status SharedDevices::Health(const ModelRecord& model) const {
  if (model.engine->Health().ok()) return absl::OkStatus();
  const EngineStats stats = Stats(model);
  if (stats.request_wakes && stats.wake_up_error.empty()) return absl::OkStatus();
  absl::MutexLock lock(&models_.mu);
  // Once no request waits and the pause is over, the next request is a new try.
  const bool tries_next = model.num_open == 0 && models_.now() >= model.transition.retries.retry_at();
  if (stats.request_wakes && tries_next) return absl::OkStatus();
  return absl::UnavailableError(ReportState(stats).Line());
}

EngineStats SharedDevices::Stats(const ModelRecord& model) const {
  EngineStats stats = model.engine->Stats();
  absl::MutexLock lock(&models_.mu);
  const ModelTransition& transition = model.transition;
  stats.model_flag = model.options.name;
  stats.wake_up_error = std::string(transition.retries.error().message());
  const bool sleeps = stats.state == EngineState::kFallingAsleep || stats.state == EngineState::kAsleep ||
                      stats.state == EngineState::kWaking;
  const bool drains = transition.decision.has_value() && stats.state == EngineState::kPausing;
  const bool may_wake = (sleeps || drains) && !model.operators.held_asleep();
  stats.request_wakes = may_wake && !stats.paused && !model.LacksWeights(stats);
  // The engine itself knows why it wakes, and why it lacks weights.
  const bool rests =
      stats.state != EngineState::kWaking && !stats.needs_weights && !stats.residency.weights_stale();
  if (may_wake && rests && !transition.sleeps_for.empty()) stats.note.why = transition.sleeps_for;
  if (stats.state == EngineState::kAsleep && model.WaitsForRoom())
    stats.awaits_room_of = models_.AwakeNames();
  return stats;
}

}  // namespace somnus
