#pragma once
// The coordinator's own Scheduler and BlockManager under a modelled worker. The `n` choices of a request are
// sequences of their own, which fork the first one, as the API submits them.

#include <memory>
#include <vector>

#include "coordinator/scheduler/scheduler.h"
#include "tools/simulator/simulated_engine.h"

namespace somnus {

// The tokens of a request's prompt: those of its group first, then its own, which no other prompt shares.
std::vector<int32_t> PromptTokens(const LoadRequest& request);

// What the options say of the scheduler; the rest has its defaults.
SchedulerOptions ToSchedulerOptions(const EngineOptions& options);

// `prices`: what preemptions cost, where the options do not say how they are done.
std::unique_ptr<SimulatedEngine> MakePagedEngine(const SchedulerOptions& options, int32_t n = 1,
                                                 const PreemptionPrices& prices = {});

}  // namespace somnus
