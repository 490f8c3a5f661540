#pragma once
// Where the bytes of sleeping regions are kept: in host memory, or in a file.
//
// Ownership: a store borrows the driver, and owns the space behind its backups, which must not outlive it.
// Not thread safe: the allocator's lock covers it.

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"

namespace somnus {

// A copy of one region. The destructor gives the space back.
class Backup {
 public:
  virtual ~Backup() = default;
  // Copies the bytes back to `data`, which is mapped; the copy is complete after VmmDriver::Synchronize.
  // DataLoss: the store's bytes are not the saved bytes.
  virtual absl::Status Restore(void* data) = 0;
  // The space that the backup takes, of host memory or of the disk.
  virtual int64_t stored_bytes() const = 0;
};

class BackupStore {
 public:
  virtual ~BackupStore() = default;
  // Whether backups take host memory; otherwise backups take disk space.
  virtual bool in_host_memory() const = 0;
  // Announces that regions of so many bytes in all are going to be saved.
  virtual void Expect(int64_t bytes) = 0;
  // Saves [data, data + bytes), which may still be read until VmmDriver::Synchronize. After an error nothing
  // reads the range any longer, and nothing is kept. ResourceExhausted says how much is missing of all that
  // was announced (memory_shortage.h).
  virtual absl::StatusOr<std::unique_ptr<Backup>> Save(const void* data, int64_t bytes) = 0;
};

}  // namespace somnus
