#include "allocator/sleepable_region.h"

#include <algorithm>
#include <cstdint>

namespace somnus {

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
