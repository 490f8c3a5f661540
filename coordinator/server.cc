#include "coordinator/server.h"

#include <algorithm>
#include <atomic>
#include <numeric>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/log.h"
#include "base/monotonic.h"
#include "base/run_dir.h"
#include "base/status_macros.h"
#include "base/threads.h"
#include "coordinator/front.h"
#include "coordinator/group/run_state.h"
#include "coordinator/served_engine.h"
#include "coordinator/several_models/shared_devices.h"
#include "coordinator/state_log.h"
#include "coordinator/taken_ports.h"

namespace somnus {
namespace {

// Null: one model has the devices for itself.
std::unique_ptr<SharedDevices> MakeSharedDevices(const Flags& flags) {
  if (flags.models.empty()) return nullptr;
  SharedDevicesOptions options = flags.devices;
  if (flags.device_memory_budget > 0) options.residency.device_memory_budget = flags.device_memory_budget;
  if (flags.host_memory_budget > 0) options.residency.host_memory_budget = flags.host_memory_budget;
  options.arrivals = flags.auto_sleep.arrivals;
  options.retry = flags.auto_sleep.retry;
  if (flags.replica_retry_pause > absl::ZeroDuration()) options.revival_pause = flags.replica_retry_pause;
  return std::make_unique<SharedDevices>(std::move(options));
}

class ServerImpl : public Server {
 public:
  explicit ServerImpl(const Flags& flags) : flags_(flags), devices_(MakeSharedDevices(flags)) {
    for (const Flags& of_model : OfEachModel(flags)) models_.push_back(ServedEngine::Create(of_model));
  }
  ~ServerImpl() override { Stop(absl::ZeroDuration()); }

  absl::Status Start() override {
    const MonotonicTime start = MonotonicNow();
    RETURN_IF_ERROR(CheckPortsAreFree(flags_));
    state_log_ = std::make_unique<StateLog>([this] { return Starting(); });
    RETURN_IF_ERROR(Open());
    opened_ = true;
    ASSIGN_OR_RETURN(front_, Front::Start(flags_, models_.front()->metrics(), [this] { return Starting(); }));
    if (MayHoldWeights()) RETURN_IF_ERROR(ReadTexts());
    {
      absl::MutexLock lock(&mu_);
      if (stop_requested_)
        return absl::CancelledError("stopped");  // before workers of other models are ended
    }
    RETURN_IF_ERROR(OpenRunDir());
    std::vector<ServedModel> served(models_.size());
    const std::vector<size_t> order = LoadOrder();
    const absl::Status loaded = Load(order, &served);
    {
      absl::MutexLock lock(&mu_);
      starting_ = false;
      if (stop_requested_) return absl::CancelledError("stopped");
    }
    RETURN_IF_ERROR(loaded);
    // The last model is served after the point from which a stop drains.
    RETURN_IF_ERROR(Serve(order.back(), &served));
    if (devices_ != nullptr) RETURN_IF_ERROR(devices_->Start());
    for (const ServedModel& model : served) engines_.push_back(model.engine);
    front_->SetModels(served);
    state_log_->SetModels(served);
    for (const std::shared_ptr<Engine>& engine : engines_)
      engine->OnStateChange([this, engine = engine.get()] { OnStateChange(*engine); });
    LogInfo("serving {} on {}; ready after {:.2f} s", Names(), front_->Addresses(),
            absl::ToDoubleSeconds(MonotonicNow() - start));
    for (const std::string& line : front_->FirstSteps()) LogInfo("{}", line);
    return absl::OkStatus();
  }

  int admin_port() const override { return front_->admin_port(); }

  absl::Status Run() override {
    {
      absl::MutexLock lock(&mu_);
      const auto ended = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
        return stop_requested_ || (AllFailed() && !flags_.stay_after_failure);
      };
      mu_.Await(absl::Condition(&ended));
    }
    std::string error;
    for (const std::shared_ptr<Engine>& engine : engines_) {
      if (error.empty()) error = engine->Stats().error;
    }
    const absl::Duration grace = flags_.shutdown_timeout;
    LogInfo("stopping{}; open requests have {}", LeftModels().empty() ? "" : ", and leaving the workers",
            absl::FormatDuration(grace));
    Stop(grace);
    if (!error.empty()) return absl::UnavailableError(absl::StrCat("the engine had failed: ", error));
    return absl::OkStatus();
  }

  void RequestStop(const StopRequest& request) override {
    const bool adoptable = !flags_.local_workers || !flags_.run_dir.empty();
    if (request.leave_workers && !adoptable)
      LogWarning("the workers are ended: without --run-dir no other coordinator could adopt them");
    absl::MutexLock lock(&mu_);
    stop_requested_ = true;
    leave_workers_ = request.leave_workers && adoptable;
    // Once requests are served, Run drains them before it ends the workers.
    if (!starting_ && !request.impatient) return;
    for (const auto& model : models_) model->Interrupt(absl::CancelledError("stopped"));
  }

 private:
  // Every error of headers and names is found before a worker exists.
  absl::Status Open() {
    std::set<std::string> names;
    for (size_t i = 0; i < models_.size(); ++i) {
      loads_ = i;
      const Metrics* const beside = i == 0 ? nullptr : models_.front()->metrics().get();
      RETURN_IF_ERROR(OfModel(i, models_[i]->Open(beside)));
      if (!names.insert(models_[i]->name()).second)
        return absl::InvalidArgumentError(absl::StrCat("--model: two models are named ", models_[i]->name()));
    }
    for (const auto& [flag, name] : FlagsWithModelNames(flags_)) {
      if (names.count(name) == 0)
        return absl::InvalidArgumentError(absl::StrCat(flag, ": no model is named ", name));
    }
    return absl::OkStatus();
  }

  // Workers of other hosts may be an earlier coordinator's, too.
  bool MayHoldWeights() const {
    return !flags_.local_workers || std::any_of(models_.begin(), models_.end(),
                                                [](const auto& model) { return model->HasLeftWorkers(); });
  }

  // A start that a damaged tokenizer ends leaves the workers of an earlier coordinator untouched, with their
  // weights: the next start may adopt them. So this read precedes OpenRunDir, which ends workers, and the
  // port at which workers of other hosts register.
  absl::Status ReadTexts() {
    std::vector<absl::Status> read(models_.size());
    std::set<size_t> under_way;
    for (size_t i = 0; i < models_.size(); ++i) under_way.insert(i);
    absl::Mutex mu;
    loads_ = 0;
    RunTogether(models_.size(), [&](size_t i) {
      read[i] = OfModel(i, models_[i]->ReadText());
      absl::MutexLock lock(&mu);
      under_way.erase(i);
      if (!under_way.empty()) loads_ = *under_way.begin();
    });
    for (const absl::Status& status : read) RETURN_IF_ERROR(status);
    return absl::OkStatus();
  }

  // Each of several models has a directory of its own. Every error of a directory is found before a worker
  // is started; the workers of models that are no longer served end.
  absl::Status OpenRunDir() {
    if (flags_.models.empty() || flags_.run_dir.empty()) return absl::OkStatus();
    ASSIGN_OR_RETURN(RunDir directory, RunDir::Open(flags_.run_dir));
    run_dir_.emplace(std::move(directory));
    std::set<std::string> own;
    for (const ModelPath& model : flags_.models) {
      const std::string path = RunDir::ModelPath(run_dir_->path(), model.name);
      RETURN_IF_ERROR(RunDir::Open(path).status());
      own.insert(path);
    }
    return EndWorkersOfOtherModels(*run_dir_, own);
  }

  // Models whose workers were left come first: these workers hold their memory already, and do not wait for
  // ever.
  std::vector<size_t> LoadOrder() const {
    std::vector<size_t> order(models_.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_partition(order.begin(), order.end(),
                          [this](size_t i) { return models_[i]->HasLeftWorkers(); });
    return order;
  }

  // Model after model is loaded, each with all the memory but for the memory of models that hold theirs; the
  // last model is not served yet.
  absl::Status Load(const std::vector<size_t>& order, std::vector<ServedModel>* served) {
    const auto make_room = [this] {
      return flags_.device_memory_budget > 0 ? devices_->MakeRoom() : absl::OkStatus();
    };
    for (const size_t i : order) {
      loads_ = i;
      RETURN_IF_ERROR(OfModel(i, models_[i]->Load(make_room)));
      if (i == order.back()) break;
      RETURN_IF_ERROR(Serve(i, served));
    }
    return absl::OkStatus();
  }

  absl::Status Serve(size_t model, std::vector<ServedModel>* served) {
    absl::StatusOr<ServedModel> made = models_[model]->Serve(devices_.get());
    RETURN_IF_ERROR(OfModel(model, made.status()));
    (*served)[model] = *std::move(made);
    return absl::OkStatus();
  }

  // Puts the model's name in front of the error where there are several models.
  absl::Status OfModel(size_t model, const absl::Status& error) const {
    if (error.ok() || models_.size() == 1) return error;
    return absl::Status(error.code(), absl::StrCat(NameInFlags(model), ": ", error.message()));
  }

  // For the time in which models have no names of their own yet.
  const std::string& NameInFlags(size_t model) const {
    const ModelPath& flags = flags_.models[model];
    return flags.name.empty() ? flags.path : flags.name;
  }

  // The report of the model that is being loaded now. On any thread.
  StateReport Starting() const {
    const size_t loads = loads_;
    const ServedEngine& model = *models_[loads];
    StateReport report = model.Starting();
    if (models_.size() == 1) return report;
    absl::StrAppend(&report.why, "; now it loads ", opened_ ? model.name() : NameInFlags(loads));
    return report;
  }

  std::string Names() const {
    return absl::StrJoin(models_, ", ",
                         [](std::string* out, const auto& model) { absl::StrAppend(out, model->name()); });
  }

  // Runs on the thread that changed the state.
  void OnStateChange(const Engine& engine) {
    front_->OnStateChange();
    state_log_->Note();
    absl::MutexLock lock(&mu_);
    if (engine.state() == EngineState::kFailed) {
      failed_.insert(&engine);
    } else {
      failed_.erase(&engine);
    }
  }

  // The server serves as long as any model does.
  bool AllFailed() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return failed_.size() == models_.size(); }

  // Ends requests first, then connections, then workers.
  void Stop(absl::Duration grace) {
    ForAllModels([grace](ServedEngine* model) { model->Drain(grace); });
    state_log_.reset();
    if (devices_ != nullptr) devices_->Stop();
    if (front_ != nullptr) front_->Shutdown(absl::Seconds(1));
    front_.reset();
    const std::set<const ServedEngine*> left = LeftModels();
    ForAllModels([&left](ServedEngine* model) { model->EndWorkers(left.count(model) > 0); });
    if (!run_dir_.has_value()) return;
    RemoveEndedModels(*run_dir_);
    run_dir_.reset();  // another coordinator may use the directory from now on
  }

  void ForAllModels(const std::function<void(ServedEngine*)>& call) {
    RunTogether(models_.size(), [&](size_t i) { call(models_[i].get()); });
  }

  // The models with workers that stay. The workers of an engine that has failed are of no use.
  std::set<const ServedEngine*> LeftModels() {
    absl::MutexLock lock(&mu_);
    std::set<const ServedEngine*> left;
    for (size_t i = 0; i < models_.size() && leave_workers_; ++i) {
      const bool failed = i < engines_.size() && failed_.count(engines_[i].get()) > 0;
      if (!failed) left.insert(models_[i].get());
    }
    return left;
  }

  const Flags flags_;
  const std::unique_ptr<SharedDevices> devices_;  // outlives the engines that it wraps
  std::vector<std::unique_ptr<ServedEngine>> models_;
  std::vector<std::shared_ptr<Engine>> engines_;  // the models'; empty until they are served
  std::atomic<bool> opened_{false};               // the models have names
  std::atomic<size_t> loads_{0};                  // the model that is being opened or loaded
  std::unique_ptr<Front> front_;
  std::unique_ptr<StateLog> state_log_;  // null before Start and after Stop
  std::optional<RunDir> run_dir_;        // of several models
  absl::Mutex mu_;
  bool stop_requested_ ABSL_GUARDED_BY(mu_) = false;
  bool leave_workers_ ABSL_GUARDED_BY(mu_) = false;
  bool starting_ ABSL_GUARDED_BY(mu_) = true;
  std::set<const Engine*> failed_ ABSL_GUARDED_BY(mu_);
};

}  // namespace

std::unique_ptr<Server> Server::Create(const Flags& flags) { return std::make_unique<ServerImpl>(flags); }

}  // namespace somnus
