#pragma once
// Backups in a file: a sleep that takes neither device nor host memory.
//
// A region is written and read in pieces, several at a time. Each piece has a checksum, which is compared
// when the piece is read back: DataLoss where the checksum differs, or the file ends too early.

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "allocator/backup_store.h"
#include "allocator/spill_io.h"
#include "allocator/vmm_driver.h"

namespace somnus {

struct SpillOptions {
  std::string dir;
  // Makes the I/O of the open file, for a number of operations at once; replaced by tests. Empty:
  // MakeSpillIo.
  std::function<std::unique_ptr<SpillIo>(int fd, int depth)> open_io;
  int64_t piece_bytes = 8 << 20;  // a multiple of kSpillAlign
  // The free bytes of the disk that the open file is on; replaced by tests. Empty: the file system's number.
  std::function<int64_t(int fd)> free_bytes = {};
};

// The file is opened at the first Save.
std::unique_ptr<BackupStore> MakeSpillStore(VmmDriver* driver, SpillOptions options);

// Whether a spill file can be made in `dir`: for the start of a process, long before the first sleep.
absl::Status CheckSpillDir(const std::string& dir);

}  // namespace somnus
