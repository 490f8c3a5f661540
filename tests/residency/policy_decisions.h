#pragma once
// The decisions of the residency policy at one moment, for the policy's tests.

#include <vector>

#include "coordinator/several_models/residency_policy.h"

namespace somnus {

using Action = ResidencyAction;
using Reason = ResidencyReason;

constexpr MonotonicTime kNow = absl::Seconds(1000);

inline std::vector<ResidencyDecision> Decisions(const ResidencyOptions& options,
                                                const std::vector<ModelView>& models) {
  return PlanResidency(options, kNow, models).decisions;
}

inline std::vector<ResidencyDecision> Only(Action action, Reason reason, int model, int level,
                                           int for_model) {
  return {{action, reason, model, level, for_model}};
}

}  // namespace somnus
