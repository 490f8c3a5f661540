#include "coordinator/residency/shared_devices.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/memory_tags.h"
#include "coordinator/residency/sharing_engine.h"

namespace somnus {
namespace {

int64_t Sum(const TagBytes& bytes) {
  int64_t sum = 0;
  for (const auto& [tag, count] : bytes) sum += count;
  return sum;
}

int64_t BackedUpBytes(const TransitionReport& report) {
  int64_t sum = 0;
  for (const RankReport& rank : report.ranks) {
    for (const auto& [tag, bytes] : rank.tags) sum += bytes.backed_up_bytes;
  }
  return sum;
}

bool IsResident(EngineState state) {
  return state == EngineState::kAwake || state == EngineState::kPausing || state == EngineState::kPaused;
}

}  // namespace

class SharedDevices::Observer : public PassingObserver {
 public:
  Observer(SharedDevices* devices, Model* model, EngineObserver* next)
      : PassingObserver(next), devices_(devices), model_(model) {}

  void OnRequestFinished(const EngineRequest& request, FinishReason reason, int32_t num_output_tokens,
                         absl::Time scheduled, absl::Time first_token, absl::Time finished) override {
    devices_->NoteEnded(model_, 1);
    PassingObserver::OnRequestFinished(request, reason, num_output_tokens, scheduled, first_token, finished);
  }

 private:
  SharedDevices* const devices_;
  Model* const model_;
};

SharedDevices::SharedDevices(SharedDevicesOptions options) : options_(std::move(options)) {}

SharedDevices::~SharedDevices() { Stop(); }

std::shared_ptr<Engine> SharedDevices::Add(SharingModel options, EngineObserver* observer,
                                           const MakeEngine& make) {
  models_.push_back(std::make_unique<Model>());
  Model* const model = models_.back().get();
  model->options = std::move(options);
  model->observer = std::make_unique<Observer>(this, model, observer);
  std::shared_ptr<Engine> engine = make(model->observer.get());
  {
    const EngineStats stats = engine->Stats();
    absl::MutexLock lock(&mu_);
    model->engine = engine.get();
    model->retry_delay = options_.first_retry;
    model->awake_since = model->last_used = options_.now();
    model->device_bytes = Sum(stats.resident_bytes);
    const auto weights = stats.resident_bytes.find(kWeightsTag);
    if (model->options.backup_takes_memory && weights != stats.resident_bytes.end())
      model->backup_bytes = weights->second;
  }
  SharingCalls calls;
  calls.submit = [this, model](auto requests) { return Submit(model, std::move(requests)); };
  calls.health = [this, model] { return Health(*model); };
  calls.sleep = [this, model](const SleepRequest& request) { return SleepByOperator(model, request); };
  calls.wake_up = [this, model] { return WakeByOperator(model); };
  calls.note = [this] { mail_.Wake(); };
  return MakeSharingEngine(std::move(engine), std::move(calls));
}

absl::Status SharedDevices::MakeRoom() {
  int64_t left = options_.residency.host_memory_budget;
  for (const std::unique_ptr<Model>& model : models_) {
    if (!IsResident(model->engine->state())) {
      left -= model->held_bytes;
      continue;
    }
    const int level = model->backup_bytes <= left ? 1 : 2;
    absl::StatusOr<TransitionReport> report = model->engine->Sleep({.level = level});
    if (!report.ok()) return report.status();
    absl::MutexLock lock(&mu_);
    NoteSleep(model.get(), report, model->sleep_time);
    left -= model->held_bytes;
  }
  return absl::OkStatus();
}

absl::Status SharedDevices::Start() {
  {
    absl::MutexLock lock(&mu_);
    if (const std::optional<int> large = FindModelThatNeverFits(options_.residency, Views())) {
      return absl::InvalidArgumentError(
          absl::StrCat("--device-memory-budget: ", models_[*large]->options.name, " takes ",
                       models_[*large]->device_bytes, " bytes while it is awake, and there are not so many"));
    }
  }
  thread_ = std::thread([this] { Run(); });
  return absl::OkStatus();
}

void SharedDevices::Stop() {
  {
    absl::MutexLock lock(&mu_);
    stopped_ = true;
  }
  mail_.Wake();
  if (thread_.joinable()) thread_.join();
  std::vector<std::unique_ptr<Carrier>> carriers;
  {
    absl::MutexLock lock(&mu_);
    carriers.swap(carriers_);
  }
  for (const std::unique_ptr<Carrier>& carrier : carriers) carrier->thread.join();
}

void SharedDevices::Run() {
  while (true) {
    absl::Duration wait;
    {
      absl::MutexLock lock(&mu_);
      if (stopped_) return;
      JoinEnded();
      const MonotonicTime now = options_.now();
      const ResidencyPlan plan = PlanResidency(options_.residency, now, Views());
      for (const ResidencyDecision& decision : plan.decisions) Begin(decision);
      wait = plan.look_again_at - now;
    }
    mail_.WaitFor(wait);
  }
}

std::vector<ModelView> SharedDevices::Views() {
  std::vector<ModelView> views;
  for (const std::unique_ptr<Model>& model : models_) views.push_back(View(model.get()));
  return views;
}

ModelState SharedDevices::StateOf(const Model& model, EngineState state) {
  if (model.decision.has_value()) {
    switch (model.decision->action) {
      case ResidencyAction::kWake:
        return ModelState::kWaking;
      case ResidencyAction::kDrain:
        return state == EngineState::kFallingAsleep ? ModelState::kFallingAsleep : ModelState::kDraining;
      case ResidencyAction::kDropBackup:
        return ModelState::kDeepening;
      default:
        return ModelState::kFallingAsleep;
    }
  }
  if (IsResident(state)) return ModelState::kAwake;
  if (state == EngineState::kFallingAsleep) return ModelState::kFallingAsleep;
  if (state == EngineState::kAsleep) return ModelState::kAsleep;
  if (state == EngineState::kWaking) return ModelState::kWaking;
  if (state == EngineState::kFailed) return ModelState::kFailed;
  return ModelState::kLoading;  // or recovering, or draining: it is left alone
}

ModelView SharedDevices::View(Model* model) {
  const EngineStats stats = model->engine->Stats();
  ModelView view;
  view.state = StateOf(*model, stats.state);
  view.level = model->decision.has_value() ? model->decision->level : stats.sleep_level;
  if (view.state == ModelState::kDeepening) view.level = 1;
  view.pinned = model->options.pinned;
  view.priority = model->options.priority;
  // Nor does a request end a pause, or bring weights that only a reload or an update has.
  view.held_asleep =
      model->held_asleep || (stats.paused && model->num_wanted == 0) || stats.residency.weights_stale();
  view.device_bytes = model->device_bytes;
  view.resident_bytes = Sum(stats.resident_bytes);
  view.backup_bytes = model->backup_bytes;
  view.held_bytes = model->held_bytes;
  view.open_requests = static_cast<int32_t>(model->num_open + model->num_wanted);
  if (view.state == ModelState::kAwake || view.open_requests == 0) {
    model->waiting_since = absl::InfiniteDuration();
  } else {
    model->waiting_since = std::min(model->waiting_since, options_.now());
  }
  view.waiting_since = model->waiting_since;
  view.last_used = model->last_used;
  view.awake_since = model->awake_since;
  view.retry_at = model->retry_at;
  view.switch_time = model->sleep_time + model->wake_up_time;
  return view;
}

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

absl::Status SharedDevices::Submit(Model* model, std::vector<EngineRequest> requests) {
  const auto count = static_cast<int64_t>(requests.size());
  {
    absl::MutexLock lock(&mu_);
    if (model->held_asleep && options_.arrivals == SleepArrivals::kReject)
      return absl::FailedPreconditionError("The engine is asleep; requests are refused until it is woken.");
    model->num_open += count;
    model->last_used = options_.now();
  }
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
  {
    absl::MutexLock lock(&mu_);
    model->held_asleep = options_.arrivals != SleepArrivals::kWake;
  }
  absl::StatusOr<TransitionReport> report = model->engine->Sleep(request);
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
    mail_.Wake();
    const auto over = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
      const bool resident = !model->decision.has_value() && IsResident(model->engine->state());
      return stopped_ || resident || model->num_wake_ups != before;
    };
    mu_.Await(absl::Condition(&over));
    --model->num_wanted;
    if (model->num_wake_ups != before) return model->last_wake_up;
    if (stopped_) return absl::FailedPreconditionError("The server is about to end.");
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
