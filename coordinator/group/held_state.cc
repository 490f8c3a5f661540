#include "coordinator/group/held_state.h"

#include <algorithm>
#include <set>
#include <string>

#include "base/memory_tags.h"
#include "base/request_bounds.h"

namespace somnus {

Residency HeldBy(const std::vector<v1::WorkerSnapshot>& snapshots) {
  int level = 0;
  std::set<std::string> resident(kMemoryTags.begin(), kMemoryTags.end());
  for (const v1::WorkerSnapshot& snapshot : snapshots) {
    if (snapshot.num_blocks() == 0) continue;
    if (snapshot.state() != "asleep") return Residency();
    level = std::max(level, snapshot.sleep_level());
    const std::set<std::string> own(snapshot.resident_tags().begin(), snapshot.resident_tags().end());
    std::erase_if(resident, [&](const std::string& tag) { return own.count(tag) == 0; });
  }
  Residency held;
  if (level == 0) return held;
  held.Slept({.level = level});
  held.Woke({resident.begin(), resident.end()});
  return held;
}

Held HeldAgain(const Held& held, const std::vector<v1::WorkerSnapshot>& snapshots) {
  Held possible = held;
  const auto is_new = [](const v1::WorkerSnapshot& rank) { return rank.state() == "created"; };
  const auto is_stale = [](const v1::WorkerSnapshot& rank) { return rank.weights_stale(); };
  const bool lacks_update =
      !held.weights.update_id.empty() && std::any_of(snapshots.begin(), snapshots.end(), is_new);
  if (!lacks_update && std::none_of(snapshots.begin(), snapshots.end(), is_stale)) return possible;
  possible.residency.SetWeightsStale(true);
  // On a rank without a source for stale weights no wake-up can read the weights.
  possible.weights.overwritten |= std::any_of(snapshots.begin(), snapshots.end(), [&](const auto& rank) {
    return is_stale(rank) && rank.checkpoint_fingerprint().empty();
  });
  if (held.residency.state(kWeightsTag) == TagState::kBackedUp)
    possible.residency.Slept({.level = kMaxSleepLevel, .tags = {kWeightsTag}});
  return possible;
}

bool AreOfUse(const Held& held) {
  const TagState state = held.residency.state(kWeightsTag);
  return state != TagState::kStale && (state != TagState::kDiscarded || held.weights.readable());
}

bool HasOtherWeights(const v1::WorkerSnapshot& rank, const Held& held) {
  const bool is_known = !held.weights.path.empty() && AreOfUse(held);
  return is_known && rank.weights_version() > 0 && rank.weights_version() != held.weights.version;
}

int32_t NumBlocksOf(const std::vector<v1::WorkerSnapshot>& snapshots) {
  for (const v1::WorkerSnapshot& snapshot : snapshots) {
    if (snapshot.num_blocks() > 0) return snapshot.num_blocks();
  }
  return 0;
}

int32_t NumMappedBlocksOf(const std::vector<v1::WorkerSnapshot>& snapshots) {
  int32_t fewest = 0;
  for (const v1::WorkerSnapshot& snapshot : snapshots) {
    if (snapshot.num_blocks() == 0) continue;
    const bool is_known = snapshot.num_mapped_blocks() > 0;
    const int32_t own = is_known ? snapshot.num_mapped_blocks() : snapshot.num_blocks();
    fewest = fewest == 0 ? own : std::min(fewest, own);
  }
  return fewest;
}

int32_t NumHostBlocksOf(const std::vector<v1::WorkerSnapshot>& snapshots, int32_t planned) {
  for (const v1::WorkerSnapshot& snapshot : snapshots) {
    if (snapshot.num_blocks() > 0) planned = std::min(planned, snapshot.num_host_blocks());
  }
  return planned;
}

}  // namespace somnus
