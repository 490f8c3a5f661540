#pragma once
// What the ranks of a group hold together, from what each of them says. Pure functions over snapshots, by
// rank.

#include <cstdint>
#include <vector>

#include "coordinator/residency/residency.h"
#include "coordinator/residency/weights.h"
#include "proto/model.pb.h"

namespace somnus {

// What a group whose workers were adopted holds: asleep where all ranks with a KV cache are, at the deepest
// level of one of them; then the tags are resident that are so on all of these. Else everything is resident.
Residency HeldBy(const std::vector<v1::WorkerSnapshot>& snapshots);

// What of `held` a group can have again whose ranks come with these snapshots. Where a rank is new, weights
// that came from an update become stale on all ranks where they are mapped, and discarded where they sleep;
// where a rank has stale weights, so have all.
Held HeldAgain(const Held& held, const std::vector<v1::WorkerSnapshot>& snapshots);
// False for weights from which nothing is served before others come: the ranks may have different ones.
bool AreOfUse(const Held& held);
// Whether a rank has kept weights of another version than the group has had.
bool HasOtherWeights(const v1::WorkerSnapshot& rank, const Held& held);

// The number of KV blocks of the first rank that has any; 0 where none has.
int32_t NumBlocksOf(const std::vector<v1::WorkerSnapshot>& snapshots);
// How many of them have memory on every rank that has any; 0 where none has.
int32_t NumMappedBlocksOf(const std::vector<v1::WorkerSnapshot>& snapshots);
// As many blocks of the host tier as every rank with a cache has, but no more than `planned`.
int32_t NumHostBlocksOf(const std::vector<v1::WorkerSnapshot>& snapshots, int32_t planned);

}  // namespace somnus
