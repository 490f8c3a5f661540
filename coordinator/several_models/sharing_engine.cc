#include "coordinator/several_models/sharing_engine.h"

#include <algorithm>
#include <string>
#include <utility>
#include <variant>

namespace somnus {
namespace {

// False: the wake-up only ends a pause.
bool WakesMemory(const WakeUpRequest& request) {
  const auto is_memory = [](const std::string& tag) { return tag != kSchedulingTag; };
  return request.tags.empty() || std::any_of(request.tags.begin(), request.tags.end(), is_memory);
}

class SharingEngine : public Engine {
 public:
  SharingEngine(std::shared_ptr<Engine> engine, SharingCalls calls)
      : engine_(std::move(engine)), calls_(std::move(calls)) {
    OnStateChange(nullptr);
  }

  absl::Status SubmitAll(std::vector<EngineRequest> requests) override {
    return calls_.submit(std::move(requests));
  }
  void Abort(const std::string& request_id) override { engine_->Abort(request_id); }
  EngineState state() const override { return engine_->state(); }
  absl::Status Health() const override { return calls_.health(); }
  void OnStateChange(std::function<void()> callback) override {
    engine_->OnStateChange([note = calls_.note, callback = std::move(callback)] {
      note();
      if (callback) callback();
    });
  }
  EngineStats Stats() const override { return calls_.stats(); }
  EngineViews View() override { return engine_->View(); }
  LifecycleResult Run(const LifecycleRequest& request) override {
    if (const auto* const sleep = std::get_if<SleepRequest>(&request)) return calls_.sleep(*sleep);
    if (const auto* const wake_up = std::get_if<WakeUpRequest>(&request); wake_up && WakesMemory(*wake_up))
      return calls_.wake_up(*wake_up);
    if (IsOneOf<WakeForArrivalsRequest>(request)) return calls_.wake_up(WakeUpRequest());
    if (const auto* const reload = std::get_if<ReloadWeightsRequest>(&request))
      return calls_.reload(reload->weights);
    if (const auto* const update = std::get_if<UpdateWeightsRequest>(&request))
      return calls_.update(update->weights);
    if (IsOneOf<ReviveRequest>(request)) return calls_.revive();
    LifecycleResult result = engine_->Run(request);
    if (IsOneOf<PauseRequest, ResumeRequest, AbortCallRequest>(request)) calls_.note();
    return result;
  }
  PinnedPrefixes& pinned_prefixes() override { return engine_->pinned_prefixes(); }
  void DrainAndStop(absl::Duration grace) override {
    engine_->DrainAndStop(grace);
    engine_->OnStateChange(nullptr);
  }
  int32_t max_model_len() const override { return engine_->max_model_len(); }
  int32_t vocab_size() const override { return engine_->vocab_size(); }

 private:
  const std::shared_ptr<Engine> engine_;
  const SharingCalls calls_;
};

}  // namespace

std::shared_ptr<Engine> MakeSharingEngine(std::shared_ptr<Engine> engine, SharingCalls calls) {
  return std::make_shared<SharingEngine>(std::move(engine), std::move(calls));
}

}  // namespace somnus
