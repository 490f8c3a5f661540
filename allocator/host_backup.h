#pragma once
// A copy of a region's bytes in host memory, for the time that the region sleeps and, when it is retained,
// beyond.

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "allocator/vmm_driver.h"

namespace somnus {

// Owns its host memory; borrows the driver. Not thread safe.
class HostBackup {
 public:
  // Queues the copy of [data, data + bytes); it is whole after driver->Synchronize().
  static absl::StatusOr<std::unique_ptr<HostBackup>> Save(VmmDriver* driver, const void* data, int64_t bytes);
  ~HostBackup();
  HostBackup(const HostBackup&) = delete;
  HostBackup& operator=(const HostBackup&) = delete;

  // Queues the copy back.
  absl::Status Restore(void* data) const;

 private:
  HostBackup(VmmDriver* driver, void* host, int64_t bytes) : driver_(driver), host_(host), bytes_(bytes) {}

  VmmDriver* const driver_;
  void* const host_;
  const int64_t bytes_;
};

}  // namespace somnus
