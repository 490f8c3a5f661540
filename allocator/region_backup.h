#pragma once
// A backup of what of a region has memory.

#include <memory>

#include "absl/status/statusor.h"
#include "allocator/backup_store.h"
#include "allocator/region.h"

namespace somnus {

// Saves the region's extents; Restore gets its data(), and the extents are still the same then. The store is
// borrowed, as by its backups. As of BackupStore::Save, the memory may be read until VmmDriver::Synchronize,
// also after an error.
absl::StatusOr<std::unique_ptr<Backup>> SaveRegion(const Region& region, BackupStore* store);

}  // namespace somnus
