#pragma once
// Counts of a Scheduler, from its start on.

#include <cstdint>

#include "coordinator/block_manager/cache_counts.h"
#include "coordinator/request/preemption_counts.h"

namespace somnus {

struct SchedulerStats {
  // Of requests: choices that are preempted together count once, as the beams of a search do.
  PreemptionCounts preemptions;
  int64_t num_preemptions() const { return preemptions.total(); }
  SwapCounts swaps;
  int64_t block_copies = 0;          // of forks
  int64_t prompt_tokens = 0;         // computed or adopted, of first admissions
  int64_t forked_prompt_tokens = 0;  // among prompt_tokens: computed once, for another choice of the prompt
  int64_t generation_tokens = 0;
  int64_t prefix_cache_queries = 0;     // tokens
  int64_t prefix_cache_hits = 0;        // tokens
  CacheMissCounts prefix_cache_misses;  // the queries that were no hits
  int64_t corrupted_requests = 0;       // that ended because their logits were bad
  int64_t num_forks = 0;                // sequences that began as forks, and branches of beams
  int64_t given_back_blocks = 0;        // by running sequences, whose later queries do not attend them
  int64_t kept_blocks = 0;              // of the KV cache, that came back after a sleep
  int64_t kept_tokens = 0;              // of live sequences, that were not computed again after the sleep
};

}  // namespace somnus
