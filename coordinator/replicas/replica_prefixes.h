#pragma once
// The pinned prefixes of several replicas: every one of them pins the same.

#include <memory>
#include <vector>

#include "coordinator/engine/pinned_prefixes.h"

namespace somnus {

// Over the PinnedPrefixes of each replica, which are borrowed. Calls that change something are made one after
// the other; a Pin that a replica refuses is taken back at the other replicas.
std::unique_ptr<PinnedPrefixes> MakeReplicaPrefixes(std::vector<PinnedPrefixes*> replicas);

}  // namespace somnus
