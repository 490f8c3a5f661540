#include "coordinator/server.h"

#include <utility>
#include <vector>

#include "base/log.h"
#include "base/monotonic.h"
#include "base/status_macros.h"
#include "coordinator/front.h"
#include "coordinator/served_engine.h"

namespace somnus {
namespace {

class ServerImpl : public Server {
 public:
  explicit ServerImpl(const Flags& flags) : flags_(flags), model_(ServedEngine::Create(flags)) {}
  ~ServerImpl() override { Stop(absl::ZeroDuration()); }

  absl::Status Start() override {
    const MonotonicTime start = MonotonicNow();
    RETURN_IF_ERROR(model_->Open());
    ASSIGN_OR_RETURN(front_, Front::Start(flags_, model_->metrics(), [this] { return RankStatuses(); }));
    const absl::Status loaded = model_->Load();
    {
      absl::MutexLock lock(&mu_);
      starting_ = false;
      if (stop_requested_) return absl::CancelledError("stopped");
    }
    RETURN_IF_ERROR(loaded);
    ASSIGN_OR_RETURN(const ServedModel served, model_->Serve());
    engine_ = served.engine;
    front_->SetModel(served);
    engine_->OnStateChange([this] { OnStateChange(); });
    LogInfo("serving {} on {}; ready after {:.2f} s", model_->name(), front_->Addresses(),
            absl::ToDoubleSeconds(MonotonicNow() - start));
    return absl::OkStatus();
  }

  int admin_port() const override { return front_->admin_port(); }

  absl::Status Run() override {
    {
      absl::MutexLock lock(&mu_);
      const auto ended = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
        return stop_requested_ || (engine_failed_ && !flags_.stay_after_failure);
      };
      mu_.Await(absl::Condition(&ended));
    }
    const std::string error = engine_->Stats().error;
    const absl::Duration grace = flags_.shutdown_timeout;
    LogInfo("stopping{}; open requests have {}", LeavesWorkers() ? ", and leaving the workers" : "",
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
    if (starting_ || request.impatient) model_->Interrupt(absl::CancelledError("stopped"));
  }

 private:
  // Runs on the thread that changed the state.
  void OnStateChange() {
    front_->OnStateChange();
    if (engine_->state() != EngineState::kFailed) return;
    absl::MutexLock lock(&mu_);
    engine_failed_ = true;
  }

  // Ends requests first, then connections, then workers.
  void Stop(absl::Duration grace) {
    model_->Drain(grace);
    if (front_ != nullptr) front_->Shutdown(absl::Seconds(1));
    front_.reset();
    model_->EndWorkers(LeavesWorkers());
  }

  // Those of an engine that has failed are of no use to anybody.
  bool LeavesWorkers() {
    absl::MutexLock lock(&mu_);
    return leave_workers_ && !engine_failed_;
  }

  // The front calls this, and it ends before the workers do. The workers are asked without the lock: a signal
  // must not wait for them.
  std::vector<v1::RankStatus> RankStatuses() {
    {
      absl::MutexLock lock(&mu_);
      if (starting_) return {};
    }
    return model_->RankStatuses();
  }

  const Flags flags_;
  const std::unique_ptr<ServedEngine> model_;
  std::shared_ptr<Engine> engine_;  // the model's; null until it is served
  std::unique_ptr<Front> front_;
  absl::Mutex mu_;
  bool stop_requested_ ABSL_GUARDED_BY(mu_) = false;
  bool leave_workers_ ABSL_GUARDED_BY(mu_) = false;
  bool starting_ ABSL_GUARDED_BY(mu_) = true;
  bool engine_failed_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace

std::unique_ptr<Server> Server::Create(const Flags& flags) { return std::make_unique<ServerImpl>(flags); }

}  // namespace somnus
