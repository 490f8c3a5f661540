#pragma once
// What the ranks of a group hold together, from what each of them says. Pure functions over snapshots, by
// rank.

#include <cstdint>
#include <vector>

#include "coordinator/residency/residency.h"
#include "proto/model.pb.h"

namespace somnus {

// What a group whose workers were adopted holds: asleep where all ranks with a KV cache are, at the deepest
// level of one of them; then the tags are resident that are so on all of these. Else everything is resident.
Residency HeldBy(const std::vector<v1::WorkerSnapshot>& snapshots);

// The number of KV blocks of the first rank that has any; 0 where none has.
int32_t NumBlocksOf(const std::vector<v1::WorkerSnapshot>& snapshots);

}  // namespace somnus
