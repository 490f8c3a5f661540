#pragma once
// Why tokens of a prompt were not found in the prefix cache. A pure function.

#include <cstdint>

#include "coordinator/block_manager/block_manager.h"
#include "coordinator/block_manager/cache_counts.h"
#include "coordinator/scheduler/sequence.h"

namespace somnus {

// Counts the tokens of a sequence's prompt beyond the first `num_found`, at its first admission.
void CountMisses(const Sequence& sequence, const BlockManagerOptions& blocks, int64_t num_found,
                 CacheMissCounts* counts);

}  // namespace somnus
