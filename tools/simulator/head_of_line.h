#pragma once
// A short prompt behind long ones: what the scheduler's options make of it, and what other rules for the
// prefill budget of a step would.

#include <cstdint>
#include <vector>

#include "tools/simulator/simulated_engine.h"

namespace somnus {

// Six prompts of 3,500 tokens come together, and a prompt of 2 tokens while their first step is under way.
struct HeadOfLineOptions {
  int32_t num_long = 6;
  int32_t long_input = 3500;
  int32_t short_input = 2;
  int32_t output = 16;  // of each
};

struct HeadOfLineOutcome {
  // Of the short one, since it came.
  double short_ttft_s = 0;
  int64_t short_ttft_steps = 0;
  // The first tokens of the long ones, since they came.
  double first_long_s = 0;
  double mean_long_s = 0;
  double last_long_s = 0;
};

HeadOfLineOutcome RunHeadOfLine(const HeadOfLineOptions& options, const CostModel& cost,
                                SimulatedEngine* engine);

// How a step's prefill budget is divided among the prompts that are not complete.
enum class PrefillSharing {
  kFirstComeFirstServed,
  kEqualParts,
  kShortestRemaining,       // whoever has the fewest tokens to compute gets all it can take
  kShortestRemainingAging,  // the same; each step of waiting counts as tokens that are computed
};

// An engine with that rule and memory for everything. Decodes come first. `aging` is in tokens per step.
std::unique_ptr<SimulatedEngine> MakeSharingEngine(PrefillSharing sharing, int32_t max_num_batched_tokens,
                                                   double aging);

// Prints tables of both.
void PrintHeadOfLine(const CostModel& cost, uint64_t seed);

}  // namespace somnus
