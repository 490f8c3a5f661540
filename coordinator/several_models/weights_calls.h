#pragma once
// Operators' changes of the weights of one of the models: reloads and updates. The memory of the weights has
// to be mapped, and stays mapped until the change has ended.
//
// A change wakes the weights of a model that no operator has put to sleep, and holds the model's memory until
// the change has ended. Stale weights, and other tags that nothing can be computed with, give their memory to
// models that wait.
//
// Owns nothing: a change holds the model's memory by OperatorMarks. Thread safe: every call blocks its
// caller, and takes SharedModels::mu.

#include <memory>
#include <optional>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "coordinator/engine/engine.h"
#include "coordinator/several_models/operator_calls.h"
#include "coordinator/several_models/shared_models.h"

namespace somnus {

class WeightsCalls {
 public:
  // Both are borrowed.
  WeightsCalls(SharedModels* models, OperatorCalls* operators) : models_(*models), operators_(*operators) {}

  absl::StatusOr<WeightsChange> Reload(SharedModel* model, const WeightsRequest& request)
      ABSL_LOCKS_EXCLUDED(models_.mu);
  // The update holds the model's memory as long as the result lives.
  absl::StatusOr<std::unique_ptr<WeightUpdate>> BeginUpdate(SharedModel* model, const WeightsRequest& request)
      ABSL_LOCKS_EXCLUDED(models_.mu);

 private:
  // Wakes the weights, unless an operator's sleep holds. The model must be held.
  absl::Status BringWeights(SharedModel* model, std::optional<bool> load_weights)
      ABSL_LOCKS_EXCLUDED(models_.mu);

  SharedModels& models_;
  OperatorCalls& operators_;
};

}  // namespace somnus
