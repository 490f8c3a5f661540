#include "coordinator/several_models/weights_calls.h"

#include <utility>
#include <vector>

#include "base/memory_tags.h"
#include "base/status_macros.h"
#include "coordinator/engine/held_update.h"

namespace somnus {
namespace {

// Only an operator may put the model to sleep as long as the hold lives.
class Hold {
 public:
  Hold(ModelRecords* models, ModelRecord* model) : models_(*models), model_(*model) {
    absl::MutexLock lock(&models_.mu);
    model_.operators.Hold();
  }
  Hold(const Hold&) = delete;
  ~Hold() {
    {
      absl::MutexLock lock(&models_.mu);
      model_.operators.Release();
      const EngineStats stats = model_.engine->Stats();
      model_.operators.EndStage(stats.state);
      model_.transition.awake_since = models_.now();  // the model's idle time begins now
      model_.transition.ForgetFailedSleeps(models_.now());
      if (stats.needs_weights) model_.operators.GiveUpStage();
    }
    models_.Wake();
  }

 private:
  ModelRecords& models_;
  ModelRecord& model_;
};

}  // namespace

absl::Status WeightsCalls::BringWeights(ModelRecord* model, std::optional<bool> load_weights) {
  {
    absl::MutexLock lock(&models_.mu);
    const OperatorDeadline deadline(&models_);
    // A sleep that was decided before the hold comes first.
    const auto settled = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(models_.mu) {
      return models_.stopped() || !model->transition.decision.has_value() || deadline.has_passed();
    };
    models_.mu.Await(absl::Condition(&settled));
    const bool asleep = model->engine->Stats().residency.asleep().count(kWeightsTag) > 0;
    // Where an operator's sleep holds, the engine refuses the change because its weights sleep.
    if (!asleep || model->operators.held_asleep()) return absl::OkStatus();
  }
  return operators_.WakeUp(model, {.tags = {kWeightsTag}, .load_weights = load_weights, .stages = false})
      .status();
}

absl::StatusOr<WeightsChange> WeightsCalls::Reload(ModelRecord* model, const WeightsRequest& request) {
  const Hold hold(&models_, model);
  RETURN_IF_ERROR(BringWeights(model, /*load_weights=*/false));  // the reload reads the weights once
  return model->engine->ReloadWeights(request);
}

absl::StatusOr<std::unique_ptr<WeightUpdate>> WeightsCalls::BeginUpdate(ModelRecord* model,
                                                                        const WeightsRequest& request) {
  auto hold = std::make_unique<Hold>(&models_, model);
  // An update need not bring all weights, so the wake-up loads the old weights.
  RETURN_IF_ERROR(BringWeights(model, /*load_weights=*/std::nullopt));
  ASSIGN_OR_RETURN(auto update, model->engine->BeginWeightUpdate(request));
  return std::make_unique<HeldUpdate>(std::move(hold), std::move(update));
}

}  // namespace somnus
