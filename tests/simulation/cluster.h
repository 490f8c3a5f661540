#pragma once
// One simulated cluster from start to end: the product's coordinator (WorkerGroup and EngineLoop), workers,
// clients, operators and faults, all drawn from a seed, and the invariants that must hold.

#include <cstdint>

#include "tests/simulation/outcome.h"

namespace somnus::simulation {

Outcome RunCluster(uint64_t seed, bool verbose);
// The cluster of the seed with ranks as stages of a pipeline.
Outcome RunStages(uint64_t seed, bool verbose);

}  // namespace somnus::simulation
