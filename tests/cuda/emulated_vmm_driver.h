#pragma once
// The host's virtual memory as the emulated GPU's: real pages at real addresses, known to the emulator as
// device memory while mapped.

#include <algorithm>
#include <map>
#include <memory>
#include <numeric>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "allocator/host_vmm_driver.h"
#include "allocator/vmm_driver.h"
#include "kernels/cuda/emulated_device.h"

namespace somnus {

class EmulatedVmmDriver : public VmmDriver {
 public:
  // `chunk_bytes`: as CudaVmmDriverOptions::chunk_bytes.
  explicit EmulatedVmmDriver(int64_t chunk_bytes = int64_t{1} << 30) : chunk_bytes_(chunk_bytes) {}

  int64_t Granularity() const override { return host_->Granularity(); }
  int64_t ChunkBytes() const override {
    return std::max(chunk_bytes_ / Granularity(), int64_t{1}) * Granularity();
  }
  // No more than the host has.
  absl::StatusOr<int64_t> TotalBytes() override {
    return std::min(GetEmulatedDeviceMemory().total, host_->TotalBytes().value_or(0));
  }
  absl::StatusOr<int64_t> AvailableBytes() override {
    return std::min(GetEmulatedDeviceMemory().available, host_->AvailableBytes().value_or(0));
  }
  absl::StatusOr<void*> Reserve(int64_t bytes) override { return host_->Reserve(bytes); }
  absl::Status FreeAddress(void* address, int64_t bytes) override {
    ForgetEmulatedAddresses(address, bytes);
    return host_->FreeAddress(address, bytes);
  }
  absl::StatusOr<Handle> Create(int64_t bytes) override {
    std::vector<Handle> handles;
    const absl::Status status = CreateAll({bytes}, &handles);
    if (!status.ok()) return status;
    return handles.front();
  }
  // The host's account has room for few reservations: pieces share a reservation.
  absl::Status CreateAll(absl::Span<const int64_t> sizes, std::vector<Handle>* handles) override {
    const int64_t bytes = std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
    if (!TakeEmulatedDeviceMemory(bytes)) return absl::ResourceExhaustedError("out of device memory");
    std::vector<Handle> created;
    const absl::Status status = host_->CreateAll(sizes, &created);
    if (!status.ok()) {
      ReturnEmulatedDeviceMemory(bytes);
      return status;
    }
    const absl::MutexLock lock(&mutex_);
    for (size_t i = 0; i < sizes.size(); ++i) created_[created[i]] = sizes[i];
    handles->insert(handles->end(), created.begin(), created.end());
    return absl::OkStatus();
  }
  absl::Status Release(Handle handle) override {
    const absl::MutexLock lock(&mutex_);
    const absl::Status status = host_->Release(handle);
    if (!status.ok()) return status;
    ReturnEmulatedDeviceMemory(created_[handle]);
    created_.erase(handle);
    return status;
  }
  absl::Status Map(void* address, int64_t bytes, Handle handle) override {
    return host_->Map(address, bytes, handle);
  }
  // Unmapped ranges may be a part of a range that got access at once, or several such ranges side by side.
  absl::Status Unmap(void* address, int64_t bytes) override {
    ForgetEmulatedDeviceMemory(address, bytes);
    return host_->Unmap(address, bytes);
  }
  absl::Status SetAccess(void* address, int64_t bytes) override {
    AdoptEmulatedDeviceMemory(address, bytes);
    return host_->SetAccess(address, bytes);
  }
  absl::StatusOr<void*> AllocateHost(int64_t bytes) override { return host_->AllocateHost(bytes); }
  void FreeHost(void* data, int64_t bytes) override { host_->FreeHost(data, bytes); }
  absl::Status CopyToHost(void* host, const void* device, int64_t bytes) override {
    return host_->CopyToHost(host, device, bytes);
  }
  absl::Status CopyFromHost(void* device, const void* host, int64_t bytes) override {
    return host_->CopyFromHost(device, host, bytes);
  }
  absl::Status Synchronize() override { return host_->Synchronize(); }
  void SetMeter(ByteMeter* meter) override {
    VmmDriver::SetMeter(meter);
    host_->SetMeter(meter);
  }

 private:
  const int64_t chunk_bytes_;
  const std::unique_ptr<VmmDriver> host_ = MakeHostVmmDriver();
  absl::Mutex mutex_;
  std::map<Handle, int64_t> created_ ABSL_GUARDED_BY(mutex_);  // bytes
};

}  // namespace somnus
