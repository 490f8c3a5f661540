#pragma once
// Memory of a driver whose calls are moments (tests/worker/moments.h), so that each call can fail.

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "allocator/vmm_driver.h"
#include "base/status_macros.h"
#include "tests/worker/moments.h"

namespace somnus {

class FaultyMemory : public VmmDriver {
 public:
  explicit FaultyMemory(std::unique_ptr<VmmDriver> driver) : driver_(std::move(driver)) {}

  int64_t Granularity() const override { return driver_->Granularity(); }
  int64_t ChunkBytes() const override { return driver_->ChunkBytes(); }
  absl::StatusOr<int64_t> TotalBytes() override { return driver_->TotalBytes(); }
  absl::StatusOr<int64_t> AvailableBytes() override {
    ASSIGN_OR_RETURN(const int64_t available, driver_->AvailableBytes());
    return Reach("available").ok() ? available : std::min(available, kLittleBytes);
  }
  absl::StatusOr<void*> Reserve(int64_t bytes) override { return driver_->Reserve(bytes); }
  absl::Status FreeAddress(void* address, int64_t bytes) override {
    return driver_->FreeAddress(address, bytes);
  }
  absl::StatusOr<Handle> Create(int64_t bytes) override {
    RETURN_IF_ERROR(Reach("create"));
    return driver_->Create(bytes);
  }
  absl::Status Release(Handle handle) override {
    RETURN_IF_ERROR(Reach("release"));
    return driver_->Release(handle);
  }
  absl::Status Map(void* address, int64_t bytes, Handle handle) override {
    RETURN_IF_ERROR(Reach("map"));
    return driver_->Map(address, bytes, handle);
  }
  absl::Status Unmap(void* address, int64_t bytes) override {
    RETURN_IF_ERROR(Reach("unmap"));
    return driver_->Unmap(address, bytes);
  }
  absl::Status SetAccess(void* address, int64_t bytes) override {
    RETURN_IF_ERROR(Reach("access"));
    return driver_->SetAccess(address, bytes);
  }
  absl::Status SetAccessForCopy(void* address, int64_t bytes) override {
    RETURN_IF_ERROR(Reach("access"));
    return driver_->SetAccessForCopy(address, bytes);
  }
  absl::StatusOr<void*> AllocateHost(int64_t bytes) override { return driver_->AllocateHost(bytes); }
  bool HostIsDevice() const override { return driver_->HostIsDevice(); }
  void FreeHost(void* data, int64_t bytes) override { driver_->FreeHost(data, bytes); }
  absl::Status CopyToHost(void* host, const void* device, int64_t bytes) override {
    RETURN_IF_ERROR(Reach("save"));
    return driver_->CopyToHost(host, device, bytes);
  }
  absl::Status CopyFromHost(void* device, const void* host, int64_t bytes) override {
    RETURN_IF_ERROR(Reach("restore"));
    RETURN_IF_ERROR(driver_->CopyFromHost(device, host, bytes));
    if (Reach("restored").ok()) return absl::OkStatus();
    RETURN_IF_ERROR(driver_->Synchronize());
    for (int64_t i = 0; i < bytes; i += kDamageStride) static_cast<char*>(device)[i] ^= 1;
    return absl::OkStatus();
  }
  absl::Status Synchronize() override { return driver_->Synchronize(); }
  void SetMeter(ByteMeter* meter) override {
    VmmDriver::SetMeter(meter);
    driver_->SetMeter(meter);
  }

 private:
  static constexpr int64_t kLittleBytes = int64_t{3} << 20;  // the bytes that are left, where that question
                                                             // fails
  static constexpr int64_t kDamageStride = 64;               // the distance of damaged bytes

  const std::unique_ptr<VmmDriver> driver_;
};

}  // namespace somnus
