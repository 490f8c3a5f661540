#pragma once
// A backup of the parts of a region that have memory.

#include <memory>

#include "absl/status/statusor.h"
#include "allocator/backup_store.h"
#include "allocator/region.h"

namespace somnus {

// Saves the region's extents; Restore gets the region's data(), and the extents must still be the same. The
// store is borrowed, and must outlive the backup. As for BackupStore::Save, the memory may be read until
// VmmDriver::Synchronize, also after an error.
absl::StatusOr<std::unique_ptr<Backup>> SaveRegion(const Region& region, BackupStore* store);

}  // namespace somnus
