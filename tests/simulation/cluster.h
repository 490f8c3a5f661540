#pragma once
// One simulated cluster from start to end: the product's coordinator (WorkerGroup and EngineLoop), its
// workers, clients, operators and faults, all drawn from a seed, and the invariants that must hold.

#include <cstdint>
#include <string>

namespace somnus::simulation {

struct Outcome {
  std::string violation;  // empty: all invariants held
  uint64_t trace = 0;     // of everything that was done, in order
  // Counts, to see that the run tried something.
  int num_requests = 0;
  int num_faults = 0;
  int64_t num_recoveries = 0;
  int64_t num_sleeps = 0;
  int64_t num_weights_changes = 0;
  int64_t num_resizes = 0;
  int64_t num_pins = 0;             // of prefixes
  int64_t num_swapped_blocks = 0;   // that came back
  int64_t num_host_hit_tokens = 0;  // of the prefix cache in the host tier
  int num_replicas = 1;
  int64_t num_moved = 0;         // requests that left a replica
  int64_t num_rolls = 0;         // of all replicas
  int num_restarts = 0;          // of the coordinator
  int num_adopted_asleep = 0;    // groups that a coordinator found wholly asleep
  int64_t num_spill_writes = 0;  // to the disk
  int64_t num_disk_errors = 0;   // calls that found the disk full, and damaged reads
  double seconds = 0;            // of virtual time
};

Outcome RunCluster(uint64_t seed, bool verbose);

}  // namespace somnus::simulation
