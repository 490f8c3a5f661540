#pragma once
// The paper's figures, from the simulator: memory waste (Figure 2), normalized latency over the request rate
// (Figures 12 and 14), memory saved by sharing (Figure 15) and the block size (Figure 18).

#include <string>

#include "absl/status/status.h"
#include "tools/simulator/serving_simulation.h"

namespace somnus {

// Writes one SVG for each figure into `directory`, which must exist, and prints the numbers as tables. In
// each run requests come for `seconds`. Takes minutes.
absl::Status WriteFigures(const SimulationOptions& base, double seconds, uint64_t seed,
                          const std::string& directory);

// The highest request rate at which the mean normalized latency is at most `limit_s` per token, to within two
// percent, looked for below `most`.
absl::StatusOr<double> SustainedRate(const SimulationOptions& options, LoadTrace trace, double seconds,
                                     uint64_t seed, double limit_s, double most);

}  // namespace somnus
