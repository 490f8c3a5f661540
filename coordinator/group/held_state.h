#pragma once
// The common state of a group's ranks, from each rank's snapshot. Pure functions over snapshots, by rank.

#include <cstdint>
#include <vector>

#include "coordinator/residency/residency.h"
#include "coordinator/residency/weights.h"
#include "proto/model.pb.h"

namespace somnus {

// The residency of a group of adopted workers: asleep if all ranks with a KV cache are asleep, at the deepest
// level of any rank; then the tags that are resident on all these ranks are resident. Else everything is
// resident.
Residency HeldBy(const std::vector<v1::WorkerSnapshot>& snapshots);

// The part of `held` that a group can have again when its ranks come with these snapshots. Where a rank is
// new, weights that came from an update become stale on all ranks where the weights are mapped, and discarded
// where the weights sleep; where a rank has stale weights, all ranks have stale weights.
Held HeldAgain(const Held& held, const std::vector<v1::WorkerSnapshot>& snapshots);
// False for weights that cannot be served before new weights come: the ranks may have different weights.
bool AreOfUse(const Held& held);
// Whether a rank has kept weights of another version than the group has had.
bool HasOtherWeights(const v1::WorkerSnapshot& rank, const Held& held);

// The number of KV blocks of the first rank with a cache; 0 where no rank has a cache.
int32_t NumBlocksOf(const std::vector<v1::WorkerSnapshot>& snapshots);
// How many KV blocks have memory on every rank with a cache; 0 where no rank has a cache.
int32_t NumMappedBlocksOf(const std::vector<v1::WorkerSnapshot>& snapshots);
// As many blocks of the host tier as every rank with a cache has, but no more than `planned`.
int32_t NumHostBlocksOf(const std::vector<v1::WorkerSnapshot>& snapshots, int32_t planned);

}  // namespace somnus
