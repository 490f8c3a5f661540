#pragma once
// One simulated cluster that serves several models on the same devices, from start to end: the product's
// SharedDevices over a WorkerGroup and an EngineLoop for each model, workers, clients, an operator for each
// model, and faults, all drawn from a seed, and the invariants that must hold.

#include <cstdint>

#include "tests/simulation/outcome.h"

namespace somnus::simulation {

Outcome RunModels(uint64_t seed, bool verbose);

}  // namespace somnus::simulation
