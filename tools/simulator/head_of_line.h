#pragma once
// A short prompt behind long ones: the effect of the scheduler's options, and of other rules for a step's
// prefill budget.

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
  // The short prompt's first token, since its arrival.
  double short_ttft_s = 0;
  int64_t short_ttft_steps = 0;
  // The long prompts' first tokens, since their arrival.
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
  kShortestRemaining,       // the prompt with the fewest tokens to compute gets all that it can take
  kShortestRemainingAging,  // as kShortestRemaining; each step of waiting counts as computed tokens
};

// An engine with that rule and memory for everything. Decodes come first. `aging` is in tokens per step.
std::unique_ptr<SimulatedEngine> MakeSharingEngine(PrefillSharing sharing, int32_t max_num_batched_tokens,
                                                   double aging);

// Prints tables of both.
void PrintHeadOfLine(const CostModel& cost, uint64_t seed);

}  // namespace somnus
