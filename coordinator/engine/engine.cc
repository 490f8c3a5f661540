#include "coordinator/engine/engine.h"

#include <utility>
#include <variant>

namespace somnus {
namespace {

template <typename Kind>
typename Kind::Result RunKind(Engine* engine, Kind request) {
  LifecycleResult result = engine->Run(std::move(request));
  if (auto* const typed = std::get_if<typename Kind::Result>(&result)) return std::move(*typed);
  return std::get<absl::Status>(std::move(result));
}

}  // namespace

absl::Status Engine::Submit(EngineRequest request) {
  std::vector<EngineRequest> requests;
  requests.push_back(std::move(request));
  return SubmitAll(std::move(requests));
}

absl::StatusOr<TransitionReport> Engine::Sleep(const SleepRequest& request) { return RunKind(this, request); }

absl::StatusOr<TransitionReport> Engine::WakeUp(const std::vector<std::string>& tags,
                                                std::optional<bool> load_weights) {
  return RunKind(this, WakeUpRequest{.tags = tags, .load_weights = load_weights});
}

absl::StatusOr<TransitionReport> Engine::WakeForArrivals() { return RunKind(this, WakeForArrivalsRequest{}); }

void Engine::EndWaiting(const absl::Status& error) {
  RunKind(this, EndWaitingRequest{.error = error}).IgnoreError();  // a stopped engine has ended its requests
}

absl::Status Engine::Prefetch() { return RunKind(this, PrefetchRequest{}); }

absl::Status Engine::Pause(const PauseRequest& request) { return RunKind(this, request); }

absl::Status Engine::Resume() { return RunKind(this, ResumeRequest{}); }

absl::StatusOr<WeightsChange> Engine::ReloadWeights(const WeightsRequest& request) {
  return RunKind(this, ReloadWeightsRequest{.weights = request});
}

absl::StatusOr<std::unique_ptr<WeightUpdate>> Engine::BeginWeightUpdate(const WeightsRequest& request) {
  return RunKind(this, UpdateWeightsRequest{.weights = request});
}

absl::StatusOr<int32_t> Engine::ResizeKvCache(int32_t total_blocks) {
  return RunKind(this, ResizeKvCacheRequest{.total_blocks = total_blocks});
}

absl::Status Engine::ResetPrefixCache(bool preempt_running) {
  return RunKind(this, ResetPrefixCacheRequest{.preempt_running = preempt_running});
}

absl::StatusOr<TransitionReport> Engine::SetAdapters(std::vector<HeldAdapter> adapters) {
  return RunKind(this, SetAdaptersRequest{.adapters = std::move(adapters)});
}

absl::Status Engine::Revive(bool asleep) { return RunKind(this, ReviveRequest{.asleep = asleep}); }

absl::Status Engine::Roll(absl::Duration grace) { return RunKind(this, RollRequest{.grace = grace}); }

absl::Status Engine::AbortCall() { return RunKind(this, AbortCallRequest{}); }

}  // namespace somnus
