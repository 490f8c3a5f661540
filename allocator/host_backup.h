#pragma once
// Backups in host memory.

#include <cstdint>
#include <memory>

#include "allocator/backup_store.h"
#include "allocator/vmm_driver.h"

namespace somnus {

// Copies are queued piece by piece while the next piece of host memory is still being allocated.
// `chunk_bytes` is the size in which that is done.
std::unique_ptr<BackupStore> MakeHostBackupStore(VmmDriver* driver, int64_t chunk_bytes);

}  // namespace somnus
