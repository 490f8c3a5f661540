#include "coordinator/group/held_state.h"

#include <algorithm>
#include <set>
#include <string>

#include "base/memory_tags.h"

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

int32_t NumBlocksOf(const std::vector<v1::WorkerSnapshot>& snapshots) {
  for (const v1::WorkerSnapshot& snapshot : snapshots) {
    if (snapshot.num_blocks() > 0) return snapshot.num_blocks();
  }
  return 0;
}

}  // namespace somnus
