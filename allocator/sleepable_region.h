#pragma once
// What the allocator knows of one region: whether it sleeps, with which backup, and its part in the prepared
// change. Plain state; the allocator's lock covers it.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "allocator/backup_store.h"
#include "allocator/region.h"
#include "allocator/sleepable_allocator.h"
#include "allocator/vmm_driver.h"

namespace somnus {

struct SleepableRegion {
  std::unique_ptr<Region> region;
  // A region that sleeps has no memory, except where the driver failed to unmap or to release it.
  bool asleep = false;
  std::unique_ptr<Backup> backup;  // of a sleeping region, or retained
  // While it sleeps: its memory was not released and is its own backup.
  bool kept_in_place = false;
  // Part of the prepared change:
  std::optional<RestoreMode> sleep_mode;
  bool new_backup = false;  // made by the prepared sleep
  bool waking = false;

  // As SleepableAllocator::SleepBytes and WakeBytes, of this region.
  int64_t BytesToSleep(RestoreMode mode, bool keeps_in_place) const;
  int64_t BytesToWake() const;
  // Adds the memory of the region, and of its backup in host memory or in a file, to `tag`.
  void AddTo(bool in_host_memory, TagStats* tag) const;
  void DropBackup();
  // Ends access to the memory, and releases it unless it is kept in place. What is not released stays
  // accounted for in the region, which tries again.
  void TakeMemory();
  // Carries out the prepared sleep. `keeps_in_place`: contents that are to be kept stay in the memory.
  void PutToSleep(bool keeps_in_place, SleepReport::Tag* tag);
};

// Both return other errors than a shortage as they are.
// What backups of the tag lacked, where `unsaved` are all that needed one.
absl::Status WithBackupShortage(const absl::Status& status, const std::string& tag,
                                const std::vector<SleepableRegion*>& unsaved);
// What each tag of a wake-up lacks, also those whose turn has not come: the error is of one region alone.
// `waking`: in the order in which they are mapped, before they are released again.
absl::Status WithWakeShortages(const absl::Status& status, const std::vector<SleepableRegion*>& waking,
                               VmmDriver* driver);

}  // namespace somnus
