#pragma once
// Backups in host memory that are compressed (piece_codec.h): about two thirds of the memory for bfloat16
// weights, at the price of the processors' time at the first sleep and at every wake-up.

#include <cstdint>
#include <memory>

#include "allocator/backup_store.h"
#include "allocator/vmm_driver.h"

namespace somnus {

// `chunk_bytes` is the size in which host memory is allocated.
std::unique_ptr<BackupStore> MakeCompressedStore(VmmDriver* driver, int64_t chunk_bytes);

}  // namespace somnus
