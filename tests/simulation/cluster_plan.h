#pragma once
// The part of a simulated cluster that the seed draws before anything runs: flags and future events.

#include <cstdint>

#include "coordinator/block_manager/kv_plan.h"
#include "coordinator/engine/engine_options.h"
#include "coordinator/flags/flags.h"
#include "tests/simulation/site.h"

namespace somnus::simulation {

struct ClusterPlan {
  Flags flags;
  bool keeps_cached_blocks = true;  // in the host tier, too
  bool resizes = false;             // the KV cache
  int idle_level = 1;               // at which an idle engine sleeps
  int num_coordinator_deaths = 0;   // at most
  bool rolls = false;               // replicas are restarted one by one
};

// Sets the site's model and disk, too. `with_stages`: the ranks are the stages of a pipeline; the rest of the
// cluster is as without.
ClusterPlan DrawPlan(Site* site, uint64_t seed, bool with_stages);
// The parts of a plan: the group of ranks; sizes of steps and of the KV cache; where backups and blocks are
// that have no memory.
void DrawGroup(Random* random, Flags* flags);
void DrawSteps(Site* site, Flags* flags);
void DrawMemory(Site* site, Flags* flags);

// Without the state that an epoch's ranks hold.
EngineOptions MakeEngineOptions(const ClusterPlan& plan, const KvPlan& cache, Site* site, int model = 0);

}  // namespace somnus::simulation
