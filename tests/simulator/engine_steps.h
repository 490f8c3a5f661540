#pragma once
// A request, and a step of a simulated engine, for tests.

#include <cstdint>
#include <optional>

#include "tools/simulator/simulated_engine.h"

namespace somnus {

inline LoadRequest Request(int64_t id, int32_t input, int32_t output) {
  LoadRequest request{.id = id, .input = input, .output = output};
  return request;
}

// Makes a step; returns the work and appends the requests that ended.
inline StepLoad Step(SimulatedEngine* engine, StepResult* result) {
  const std::optional<StepLoad> load = engine->BeginStep();
  if (!load.has_value()) return {};
  engine->EndStep(result);
  return *load;
}

}  // namespace somnus
