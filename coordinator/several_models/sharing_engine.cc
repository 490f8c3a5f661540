#include "coordinator/several_models/sharing_engine.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

namespace somnus {
namespace {

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
  absl::StatusOr<TransitionReport> Sleep(const SleepRequest& request) override {
    return calls_.sleep(request);
  }
  absl::StatusOr<TransitionReport> WakeUp(const std::vector<std::string>& tags,
                                          std::optional<bool> load_weights) override {
    const bool schedules = !tags.empty() && std::all_of(tags.begin(), tags.end(), [](const std::string& tag) {
      return tag == kSchedulingTag;
    });
    if (schedules) return engine_->WakeUp(tags, load_weights);
    return calls_.wake_up(tags, load_weights);
  }
  absl::StatusOr<TransitionReport> WakeForArrivals() override { return calls_.wake_up({}, std::nullopt); }
  void EndWaiting(const absl::Status& error) override { engine_->EndWaiting(error); }
  absl::Status Prefetch() override { return engine_->Prefetch(); }
  absl::Status Pause(const PauseRequest& request) override { return Noted(engine_->Pause(request)); }
  absl::Status Resume() override { return Noted(engine_->Resume()); }
  absl::StatusOr<WeightsChange> ReloadWeights(const WeightsRequest& request) override {
    return calls_.reload(request);
  }
  absl::StatusOr<std::unique_ptr<WeightUpdate>> BeginWeightUpdate(const WeightsRequest& request) override {
    return calls_.update(request);
  }
  absl::StatusOr<int32_t> ResizeKvCache(int32_t total_blocks) override {
    return engine_->ResizeKvCache(total_blocks);
  }
  absl::Status ResetPrefixCache(bool preempt_running) override {
    return engine_->ResetPrefixCache(preempt_running);
  }
  PinnedPrefixes& pinned_prefixes() override { return engine_->pinned_prefixes(); }
  absl::Status Revive(bool /*asleep*/) override { return calls_.revive(); }
  absl::Status Roll(absl::Duration grace) override { return engine_->Roll(grace); }
  absl::Status AbortCall() override { return Noted(engine_->AbortCall()); }
  void DrainAndStop(absl::Duration grace) override {
    engine_->DrainAndStop(grace);
    engine_->OnStateChange(nullptr);
  }
  int32_t max_model_len() const override { return engine_->max_model_len(); }
  int32_t vocab_size() const override { return engine_->vocab_size(); }

 private:
  absl::Status Noted(absl::Status status) {
    calls_.note();
    return status;
  }

  const std::shared_ptr<Engine> engine_;
  const SharingCalls calls_;
};

}  // namespace

std::shared_ptr<Engine> MakeSharingEngine(std::shared_ptr<Engine> engine, SharingCalls calls) {
  return std::make_shared<SharingEngine>(std::move(engine), std::move(calls));
}

}  // namespace somnus
