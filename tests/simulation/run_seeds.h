#pragma once
// Runs many simulated clusters in processes of their own: memory of a killed worker stays allocated until the
// process ends, and a crash of the code under test is the failure of one seed.

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace somnus::simulation {

struct SeedRange {
  uint64_t first = 1;
  uint64_t count = 1;
};

struct Summary {
  uint64_t num_seeds = 0;                                  // that were run
  std::vector<std::pair<uint64_t, std::string>> failures;  // seed, violation
  std::map<uint64_t, uint64_t> traces;                     // by seed
  uint64_t num_requests = 0, num_faults = 0, num_recoveries = 0, num_sleeps = 0, num_weights_changes = 0,
           num_resizes = 0, num_pins = 0, num_swapped_blocks = 0, num_host_hit_tokens = 0,
           num_spill_writes = 0, num_disk_errors = 0, num_restarts = 0, num_adopted_asleep = 0,
           num_with_replicas = 0, num_moved = 0, num_rolls = 0;

  std::string Describe() const;
};

// Stops after `max_failures`.
Summary RunSeeds(const SeedRange& range, bool verbose, size_t max_failures = 10);

}  // namespace somnus::simulation
