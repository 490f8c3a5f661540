#pragma once
// The allocator's state of one region: whether the region sleeps, with which backup, and its part in the
// prepared change. Plain state; covered by the allocator's lock.

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
  // A region that sleeps has no memory, except where the driver failed to unmap or to release memory.
  bool asleep = false;
  std::unique_ptr<Backup> backup;  // of a sleeping region, or retained
  // While the region sleeps: the memory was not released and is its own backup.
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
  // Ends access to the memory, and releases the memory unless it is kept in place. Memory that is not
  // released stays accounted for in the region, which tries again.
  void TakeMemory();
  // Carries out the prepared sleep. `keeps_in_place`: contents to be kept stay in the memory.
  void PutToSleep(bool keeps_in_place, SleepReport::Tag* tag);
};

// WithBackupShortage and WithWakeShortages return errors other than a shortage unchanged.
// The shortage of backups for the tag, where `unsaved` are all regions that needed a backup.
absl::Status WithBackupShortage(const absl::Status& status, const std::string& tag,
                                const std::vector<SleepableRegion*>& unsaved);
// The shortage of each tag of a wake-up, also of tags that have not had their turn: the error is of a single
// region. `waking`: in the order of mapping, before the regions are released again.
absl::Status WithWakeShortages(const absl::Status& status, const std::vector<SleepableRegion*>& waking,
                               VmmDriver* driver);

}  // namespace somnus
