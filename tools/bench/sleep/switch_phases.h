#pragma once
// Switches between two models in memory for one.

#include <cstdint>

#include "absl/status/status.h"
#include "tools/bench/sleep/phase_table.h"
#include "tools/bench/sleep/served_engine.h"

namespace somnus {

struct SwitchFloors {
  int64_t model_bytes = 0;  // of device memory while a model is awake, over all ranks
  double seconds = 0;       // to release model_bytes, fault them in and copy the weights
  double undisturbed = 0;   // seconds to a first token of an engine that never slept
};

// One round: the model of `options` twice, under two names, and requests for the sleeping model, `turns` for
// each.
absl::Status MeasureSwitches(const ServedEngineOptions& options, const SwitchFloors& floors, int turns,
                             PhaseTable* table);

}  // namespace somnus
