#pragma once
// Runs many simulations in separate processes: memory of a killed worker stays allocated until the process
// ends, and a crash of the code under test is the failure of one seed.

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tests/simulation/outcome.h"

namespace somnus::simulation {

// Runs one seed: RunCluster, RunStages or RunModels.
struct Scenario {
  Outcome (*run)(uint64_t seed, bool verbose);
  const char* flag;  // with which simulate_cluster runs the scenario
};
extern const Scenario kOneModel;
extern const Scenario kStages;
extern const Scenario kSeveralModels;

struct SeedRange {
  uint64_t first = 1;
  uint64_t count = 1;
};

struct Summary {
  std::string flag;                                        // Scenario::flag
  uint64_t num_seeds = 0;                                  // that were run
  std::vector<std::pair<uint64_t, std::string>> failures;  // seed, violation
  std::map<uint64_t, uint64_t> traces;                     // by seed
  Counts counts;                                           // sums over the seeds

  std::string Describe() const;
};

// Stops after `max_failures`.
Summary RunSeeds(const Scenario& scenario, const SeedRange& range, bool verbose, size_t max_failures = 10);

}  // namespace somnus::simulation
