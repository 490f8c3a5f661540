#include "allocator/host_backup.h"

namespace somnus {

absl::StatusOr<std::unique_ptr<HostBackup>> HostBackup::Save(VmmDriver* driver, const void* data,
                                                             int64_t bytes) {
  absl::StatusOr<void*> host = driver->AllocateHost(bytes);
  if (!host.ok()) return host.status();
  std::unique_ptr<HostBackup> backup(new HostBackup(driver, *host, bytes));
  if (absl::Status status = driver->CopyToHost(*host, data, bytes); !status.ok()) return status;
  return backup;
}

HostBackup::~HostBackup() { driver_->FreeHost(host_, bytes_); }

absl::Status HostBackup::Restore(void* data) const { return driver_->CopyFromHost(data, host_, bytes_); }

}  // namespace somnus
