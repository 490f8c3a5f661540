// SharedDevices' part for changes of the weights of one of the models. Their memory has to be mapped, and
// stays so until they have ended.

#include <optional>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "base/memory_tags.h"
#include "base/status_macros.h"
#include "coordinator/several_models/shared_devices.h"

namespace somnus {

// The model is not put to sleep as long as it lives, unless an operator says so.
class SharedDevices::Hold {
 public:
  Hold(SharedDevices* devices, Model* model) : devices_(devices), model_(model) {
    absl::MutexLock lock(&devices_->mu_);
    ++model_->num_holds;
  }
  ~Hold() {
    {
      absl::MutexLock lock(&devices_->mu_);
      --model_->num_holds;
      const EngineStats stats = model_->engine->Stats();
      EndStage(model_, stats.state);
      model_->awake_since = devices_->options_.now();  // its idle time begins now
      // A change that has failed leaves nothing for which its memory would be kept.
      if (stats.needs_weights) model_->staged = false;
    }
    devices_->mail_.Wake();
  }

 private:
  SharedDevices* const devices_;
  Model* const model_;
};

class SharedDevices::HeldUpdate : public WeightUpdate {
 public:
  HeldUpdate(std::unique_ptr<Hold> hold, std::unique_ptr<WeightUpdate> update)
      : hold_(std::move(hold)), update_(std::move(update)) {}

  absl::Status Send(v1::WeightChunk chunk) override { return update_->Send(std::move(chunk)); }
  absl::Status status() const override { return update_->status(); }
  std::vector<v1::UpdatePort> ports() const override { return update_->ports(); }
  absl::StatusOr<WeightsChange> Finish(const std::optional<ReceivedWeights>& expected) override {
    return update_->Finish(expected);
  }

 private:
  // Members are destroyed in reverse: the update first.
  const std::unique_ptr<Hold> hold_;
  const std::unique_ptr<WeightUpdate> update_;
};

absl::Status SharedDevices::BringWeights(Model* model, std::optional<bool> load_weights) {
  {
    absl::MutexLock lock(&mu_);
    const auto deadline = waits_.insert(options_.now() + options_.operator_wait);
    const absl::Cleanup forget = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { waits_.erase(deadline); };
    // A sleep that was decided before the hold comes first.
    const auto settled = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
      return stopped_ || !model->decision.has_value() || options_.now() >= *deadline;
    };
    mu_.Await(absl::Condition(&settled));
    const bool asleep = model->engine->Stats().residency.asleep().count(kWeightsTag) > 0;
    if (!asleep || model->held_asleep) return absl::OkStatus();  // the engine says that they sleep
  }
  return WakeByOperator(model, {kWeightsTag}, load_weights, /*stages=*/false).status();
}

absl::StatusOr<WeightsChange> SharedDevices::ReloadByOperator(Model* model, const WeightsRequest& request) {
  const Hold hold(this, model);
  RETURN_IF_ERROR(BringWeights(model, /*load_weights=*/false));  // they are read once
  return model->engine->ReloadWeights(request);
}

absl::StatusOr<std::unique_ptr<WeightUpdate>> SharedDevices::UpdateByOperator(Model* model,
                                                                              const WeightsRequest& request) {
  auto hold = std::make_unique<Hold>(this, model);
  RETURN_IF_ERROR(BringWeights(model, /*load_weights=*/std::nullopt));  // it need not bring all of them
  ASSIGN_OR_RETURN(auto update, model->engine->BeginWeightUpdate(request));
  return std::make_unique<HeldUpdate>(std::move(hold), std::move(update));
}

}  // namespace somnus
