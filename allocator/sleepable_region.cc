#include "allocator/sleepable_region.h"

#include <algorithm>
#include <cstdint>

namespace somnus {

int64_t SleepableRegion::BytesToSleep(RestoreMode mode, bool keeps_in_place) const {
  const bool saves = mode == RestoreMode::kBackup;
  const bool keeps = saves && (kept_in_place || (keeps_in_place && !asleep));
  const bool copies = saves && !asleep && !keeps_in_place && backup == nullptr;
  return (keeps ? 0 : region->held_bytes()) + (copies ? region->wanted_bytes() : 0);
}

int64_t SleepableRegion::BytesToWake() const {
  // The pages of one that is kept in place are there, but have to be opened.
  const int64_t held = kept_in_place ? 0 : region->held_bytes();
  return std::max<int64_t>(0, region->wanted_bytes() - held) +
         (backup != nullptr ? region->wanted_bytes() : 0);
}

void SleepableRegion::DropBackup() {
  backup = nullptr;
  kept_in_place = false;
}

void SleepableRegion::TakeMemory() { (kept_in_place ? region->Detach() : region->Vacate()).IgnoreError(); }

void SleepableRegion::PutToSleep(bool keeps_in_place, SleepReport::Tag* tag) {
  const int64_t before = kept_in_place ? 0 : region->held_bytes();
  const bool had_contents = !asleep || backup != nullptr || kept_in_place;
  if (sleep_mode == RestoreMode::kDiscard) {
    DropBackup();
    if (had_contents) tag->discarded += region->wanted_bytes();
  } else if (keeps_in_place && !asleep) {
    kept_in_place = true;
  }
  TakeMemory();
  asleep = true;
  const int64_t after = kept_in_place ? 0 : region->held_bytes();
  if (backup != nullptr || kept_in_place) tag->backed_up += region->wanted_bytes();
  if (new_backup) tag->copied += region->wanted_bytes();
  tag->freed += std::max<int64_t>(0, before - after);
  tag->still_resident += after;
}

}  // namespace somnus
