#pragma once
// Operators' changes of the weights of one of the models: reloads and updates. The memory of the weights has
// to be mapped, and stays mapped until the change has ended.
//
// A change wakes the weights of a model that no operator has put to sleep, and holds the model's memory until
// the change has ended. Stale weights, and other tags that nothing can be computed with, give their memory to
// models that wait.
//
// Owns nothing: a change holds the model's memory by OperatorMarks. Thread safe: every call blocks its
// caller, and takes ModelRecords::mu.

#include <memory>
#include <optional>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "coordinator/engine/lifecycle_requests.h"
#include "coordinator/several_models/model_records.h"
#include "coordinator/several_models/operator_calls.h"

namespace somnus {

class WeightsCalls {
 public:
  // Both are borrowed.
  WeightsCalls(ModelRecords* models, OperatorCalls* operators) : models_(*models), operators_(*operators) {}

  absl::StatusOr<WeightsChange> Reload(ModelRecord* model, const WeightsRequest& request)
      ABSL_LOCKS_EXCLUDED(models_.mu);
  // The update holds the model's memory as long as the result lives.
  absl::StatusOr<std::unique_ptr<WeightUpdate>> BeginUpdate(ModelRecord* model, const WeightsRequest& request)
      ABSL_LOCKS_EXCLUDED(models_.mu);

 private:
  // Wakes the weights, unless an operator's sleep holds. The model must be held.
  absl::Status BringWeights(ModelRecord* model, std::optional<bool> load_weights)
      ABSL_LOCKS_EXCLUDED(models_.mu);

  ModelRecords& models_;
  OperatorCalls& operators_;
};

}  // namespace somnus
