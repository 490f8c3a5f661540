#include "coordinator/several_models/shared_devices.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/heartbeat.h"
#include "base/memory_tags.h"
#include "coordinator/several_models/sharing_engine.h"

namespace somnus {
namespace {

int64_t Sum(const TagBytes& bytes) {
  int64_t sum = 0;
  for (const auto& [tag, count] : bytes) sum += count;
  return sum;
}

int64_t Of(const std::string& tag, const TagBytes& bytes) {
  const auto found = bytes.find(tag);
  return found == bytes.end() ? 0 : found->second;
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
  model->index = static_cast<int>(models_.size()) - 1;
  model->options = std::move(options);
  model->observer = std::make_unique<Observer>(this, model, observer);
  model->deadlines.emplace(model->options.targets, options_.now);
  std::shared_ptr<Engine> engine = make(model->observer.get());
  {
    const EngineStats stats = engine->Stats();
    absl::MutexLock lock(&mu_);
    model->engine = engine.get();
    model->retries.emplace(options_.retry);
    model->revival = RetryBackoff(options_.revival_pause, options_.longest_revival_pause);
    model->awake_since = model->last_used = options_.now();
    model->tag_bytes = stats.resident_bytes;
    for (const auto& [tag, bytes] : stats.sleeping_bytes) model->tag_bytes[tag] += bytes;
    if (model->options.elastic_kv) InitKv(model, stats);
    model->device_bytes = Sum(model->tag_bytes);
    model->weights_bytes = Of(kWeightsTag, model->tag_bytes);
  }
  SharingCalls calls;
  calls.submit = [this, model](auto requests) { return Submit(model, std::move(requests)); };
  calls.health = [this, model] { return Health(*model); };
  calls.stats = [this, model] { return Stats(*model); };
  calls.sleep = [this, model](const SleepRequest& request) { return SleepByOperator(model, request); };
  calls.wake_up = [this, model](const auto& tags, std::optional<bool> load_weights) {
    return WakeByOperator(model, tags, load_weights, /*stages=*/true);
  };
  calls.reload = [this, model](const WeightsRequest& request) { return ReloadByOperator(model, request); };
  calls.update = [this, model](const WeightsRequest& request) { return UpdateByOperator(model, request); };
  calls.revive = [this, model] { return Revive(model); };
  calls.note = [this] { mail_.Wake(); };
  return MakeSharingEngine(std::move(engine), std::move(calls));
}

absl::Status SharedDevices::MakeRoom() {
  int64_t left = options_.residency.host_memory_budget;
  for (const std::unique_ptr<Model>& model : models_) {
    const EngineStats stats = model->engine->Stats();
    const bool half_asleep = stats.state == EngineState::kAsleep && Sum(stats.resident_bytes) > 0;
    if (half_asleep || IsResident(stats.state)) {
      const int level = BackupBytes(*model, stats) <= left ? 1 : 2;
      absl::StatusOr<TransitionReport> report = model->engine->Sleep({.level = level});
      if (!report.ok()) return report.status();
      absl::MutexLock lock(&mu_);
      NoteSleep(model.get(), report, model->sleep_time);
    }
    left -= Sum(model->engine->Stats().host_bytes);
  }
  return absl::OkStatus();
}

absl::Status SharedDevices::Start() {
  {
    absl::MutexLock lock(&mu_);
    std::vector<ModelView> views = Views();
    for (size_t i = 0; i < views.size(); ++i) {
      const KvState& kv = models_[i]->kv;
      if (kv.block_bytes > 0) views[i].device_bytes = DeviceBytesWith(*models_[i], kv.min_blocks);
    }
    if (const std::optional<int> large = FindModelThatNeverFits(options_.residency, views)) {
      return absl::InvalidArgumentError(
          absl::StrCat("--device-memory-budget: ", models_[*large]->options.name, " takes ",
                       views[*large].device_bytes, " bytes while it is awake, and there are not so many"));
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
  const Heartbeat heartbeat("", "residency of the models");
  while (true) {
    heartbeat.Beat();
    absl::Duration wait;
    {
      absl::MutexLock lock(&mu_);
      if (stopped_) return;
      JoinEnded();
      const MonotonicTime now = options_.now();
      std::vector<ModelView> views = Views();
      const MonotonicTime share_again_at = std::min(ShareKv(now, &views), ReviveDue(now));
      const ResidencyPlan plan = PlanResidency(options_.residency, now, views);
      for (const ResidencyDecision& decision : plan.decisions) Begin(decision);
      // Taking the mutex lets the waiting calls look at the time. Those whose time has come did.
      const auto next_wait = waits_.upper_bound(now);
      const MonotonicTime give_up_at = next_wait == waits_.end() ? absl::InfiniteDuration() : *next_wait;
      wait = std::max(std::min({plan.look_again_at, share_again_at, give_up_at}) - now, absl::ZeroDuration());
    }
    mail_.WaitFor(wait);
  }
}

std::vector<ModelView> SharedDevices::Views() {
  std::vector<ModelView> views;
  for (const std::unique_ptr<Model>& model : models_) views.push_back(View(model.get()));
  return views;
}

bool SharedDevices::IsResident(EngineState state) {
  return state == EngineState::kAwake || state == EngineState::kPausing || state == EngineState::kPaused;
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

void SharedDevices::EndStage(Model* model, EngineState state) {
  if (!model->staged || !IsResident(state)) return;
  model->staged = model->held_asleep = false;
}

const SharedDevices::OperatorWake* SharedDevices::WakeOf(const Model& model) {
  if (model.decision.has_value() && model.decision->action == ResidencyAction::kWake)
    return model.carried.has_value() ? &*model.carried : nullptr;
  return model.wanted.has_value() && !model.wanted->result.has_value() ? &*model.wanted : nullptr;
}

bool SharedDevices::IsCarriedOut(const Model& model) {
  return model.decision.has_value() && model.decision->action == ResidencyAction::kWake &&
         model.carried.has_value() && model.wanted.has_value() && model.carried->id == model.wanted->id;
}

int64_t SharedDevices::BytesAfter(const Model& model, const EngineStats& stats, const ModelView& view,
                                  const std::vector<std::string>& tags) {
  int64_t bytes = view.resident_bytes;
  for (const std::string& tag : stats.residency.ToWake(tags)) {
    if (stats.residency.asleep().count(tag) == 0) continue;  // stale weights
    const bool elastic = tag == kKvCacheTag && model.kv.block_bytes > 0;
    bytes += elastic ? view.device_bytes - model.kv.other_bytes : Of(tag, model.tag_bytes);
  }
  return bytes;
}

int64_t SharedDevices::BackupBytes(const Model& model, const EngineStats& stats) {
  const TagState weights = stats.residency.state(kWeightsTag);
  if (weights != TagState::kResident && weights != TagState::kBackedUp) return 0;
  const BackupMemory memory = model.options.backup_memory;
  const bool takes =
      memory == BackupMemory::kAlways || (memory == BackupMemory::kOnlyCopy && stats.only_copy);
  return takes ? model.weights_bytes : 0;
}

ModelView SharedDevices::View(Model* model) {
  const EngineStats stats = model->engine->Stats();
  ModelView view;
  view.state = StateOf(*model, stats.state);
  view.level = model->decision.has_value() ? model->decision->level : stats.sleep_level;
  if (view.state == ModelState::kDeepening) view.level = 1;
  view.pinned = model->options.pinned;
  view.priority = model->options.priority;
  view.idle_sleep = model->options.idle_sleep;
  view.idle_level = model->options.idle_level;
  EndStage(model, stats.state);
  const OperatorWake* const wake = WakeOf(*model);
  const TagState weights = stats.residency.state(kWeightsTag);
  // Nor does a request end a pause, or bring weights that only a reload or an update has, or that an operator
  // is about to replace.
  const bool replaced = stats.needs_weights || (model->staged && weights == TagState::kStale);
  view.held_asleep = wake == nullptr && (model->held_asleep || stats.paused || replaced);
  view.held_awake = model->staged || model->num_holds > 0 || model->wanted.has_value();
  view.device_bytes = model->device_bytes;
  view.resident_bytes = Sum(stats.resident_bytes);
  if (model->kv.block_bytes > 0) {
    NoteKv(model, stats);
    view.device_bytes = DeviceBytesOf(*model, view);
  }
  // A model that is brought up asleep takes no more device memory than the model holds.
  const bool recovers_asleep = stats.state == EngineState::kRecovering && !stats.residency.asleep().empty();
  if (recovers_asleep || model->revives) view.device_bytes = view.resident_bytes;
  if (wake != nullptr && !wake->tags.empty() && !IsResident(stats.state))
    view.device_bytes = BytesAfter(*model, stats, view, wake->tags);
  for (const auto& [tag, bytes] : stats.resident_bytes) {
    const bool idle = view.state == ModelState::kAsleep && !view.held_awake;
    if (idle && stats.residency.asleep().count(tag) == 0) view.idle_bytes += bytes;
  }
  view.backup_bytes = BackupBytes(*model, stats);
  view.reads_backup = model->options.backup_memory == BackupMemory::kOnlyCopy && !stats.only_copy;
  view.held_bytes = Sum(stats.host_bytes);
  view.held_kv_bytes = Of(kKvCacheTag, stats.host_bytes);
  view.kv_bytes = stats.keepable_bytes;
  view.max_kept_bytes = model->promised_kept_bytes;
  if (model->decision.has_value())
    view.max_kept_bytes = std::max(view.max_kept_bytes, model->decision->max_kept_bytes);
  view.is_promised_backup = model->num_promised_backups > 0;
  if (view.state == ModelState::kAwake) model->level_is_asked = false;
  view.level_is_asked = model->level_is_asked;
  view.only_copy = stats.only_copy;
  view.stay_told = model->stay_told;
  view.prefetched = model->prefetched;
  view.open_requests = static_cast<int32_t>(model->num_open + (wake == nullptr ? 0 : 1));
  const bool waits = view.state != ModelState::kAwake && view.open_requests > 0;
  model->waiting_since = waits ? std::min(model->waiting_since, options_.now()) : absl::InfiniteDuration();
  view.waiting_since = model->waiting_since;
  view.last_used = model->last_used;
  view.awake_since = model->awake_since;
  view.retry_at = model->retries->retry_at();
  view.switch_time = model->sleep_time + model->wake_up_time;
  view.deadline = model->deadlines->Earliest();
  view.step_time = stats.decode_step_time;
  view.tpot_target = model->options.targets.tpot;
  return view;
}

}  // namespace somnus
