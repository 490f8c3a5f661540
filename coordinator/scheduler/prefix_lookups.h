#pragma once
// How much sequences share of their beginnings, and why tokens of a prompt were not found in the prefix
// cache. Pure functions.

#include <cstdint>

#include "coordinator/block_manager/block_manager_options.h"
#include "coordinator/block_manager/cache_counts.h"
#include "coordinator/scheduler/sequence.h"

namespace somnus {

// How many tokens both begin with.
int64_t CommonPrefix(const Sequence& a, const Sequence& b);

// Counts the tokens of a sequence's prompt beyond the first `num_found`, at its first admission.
void CountMisses(const Sequence& sequence, const BlockManagerOptions& blocks, int64_t num_found,
                 CacheMissCounts* counts);

}  // namespace somnus
