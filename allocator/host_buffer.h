#pragma once
// Host memory that copies run fastest to and from, for a limited time.

#include <cstdint>

#include "absl/status/status.h"
#include "allocator/vmm_driver.h"

namespace somnus {

// Owns its memory; borrows the driver. Not thread safe.
class HostBuffer {
 public:
  explicit HostBuffer(VmmDriver* driver) : driver_(driver) {}
  ~HostBuffer() {
    if (data_ != nullptr) driver_->FreeHost(data_, bytes_);
  }
  HostBuffer(const HostBuffer&) = delete;
  HostBuffer& operator=(const HostBuffer&) = delete;

  // To be called once.
  absl::Status Allocate(int64_t bytes) {
    absl::StatusOr<void*> data = driver_->AllocateHost(bytes);
    if (!data.ok()) return data.status();
    data_ = static_cast<char*>(*data);
    bytes_ = bytes;
    return absl::OkStatus();
  }
  char* data() const { return data_; }  // null before Allocate

 private:
  VmmDriver* const driver_;
  char* data_ = nullptr;
  int64_t bytes_ = 0;
};

}  // namespace somnus
