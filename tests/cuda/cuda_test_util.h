#pragma once
// What tests of CUDA ops share. The same test source is built twice: against the emulator (a test of CI),
// and, as NAME_gpu_test, against the real backend, where it skips when there is no GPU.

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "kernels/cuda/api.h"
#include "kernels/device.h"
#include "kernels/ops.h"
#ifdef SOMNUS_CUDA_EMULATOR
#include "kernels/cuda/emulated_device.h"
#endif

namespace somnus::cuda_test {

// Emulated with this schedule and size, or the first real one; then both mean nothing. nullptr without a GPU.
inline std::unique_ptr<Device> MakeCudaDevice(uint64_t seed = 1, int num_sms = 132) {
#ifdef SOMNUS_CUDA_EMULATOR
  // Another schedule for all tests of a run.
  if (const char* const extra = std::getenv("SOMNUS_EMULATOR_SEED"))
    seed += std::strtoull(extra, nullptr, 10);
  auto device = CreateEmulatedCudaDevice({.seed = seed, .num_sms = num_sms});
  EXPECT_TRUE(device.ok()) << device.status();
#else
  auto device = Device::CreateCuda(0);
#endif
  return device.ok() ? *std::move(device) : nullptr;
}

// In a test or fixture, where `device` is what MakeCudaDevice made.
#define SOMNUS_SKIP_WITHOUT_GPU(device) \
  if ((device) == nullptr) GTEST_SKIP() << ::somnus::Device::CreateCuda(0).status()

// Memory of the device that the host can use too, once the device was synchronized; aligned to 256 bytes and
// full of NaNs. Emulated: device memory with guard bytes behind it, which are checked at the end (with
// address sanitizer: exactly as long, nothing behind). Real: managed memory with the same guards.
class DeviceBuffer {
 public:
  explicit DeviceBuffer(int64_t bytes) : bytes_(bytes) {
    const int64_t all = bytes + kGuard > 0 ? bytes + kGuard : 1;
#ifdef SOMNUS_CUDA_EMULATOR
    auto memory = AllocateEmulatedDevice(all);
    EXPECT_TRUE(memory.ok()) << memory.status();
    data_ = static_cast<unsigned char*>(memory.value_or(nullptr));
#else
    EXPECT_EQ(cudaMallocManaged(&data_, static_cast<size_t>(all)), cudaSuccess);
#endif
    std::memset(data_, 0xff, static_cast<size_t>(bytes));
    std::memset(data_ + bytes, kGuardByte, static_cast<size_t>(kGuard));
  }
  ~DeviceBuffer() {
#ifndef SOMNUS_CUDA_EMULATOR
    cudaDeviceSynchronize();
#endif
    for (int64_t i = 0; i < kGuard; ++i) {
      EXPECT_EQ(data_[bytes_ + i], kGuardByte)
          << "written behind a buffer of " << bytes_ << " bytes, at byte " << i;
    }
#ifdef SOMNUS_CUDA_EMULATOR
    FreeEmulatedDevice(data_);
#else
    cudaFree(data_);
#endif
  }
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;

  template <typename T>
  T* as() {
    return reinterpret_cast<T*>(data_);
  }
  int64_t bytes() const { return bytes_; }

 private:
#ifdef __SANITIZE_ADDRESS__
  static constexpr int64_t kGuard = 0;
#else
  static constexpr int64_t kGuard = 256;
#endif
  static constexpr unsigned char kGuardByte = 0x5b;

  int64_t bytes_;
  unsigned char* data_ = nullptr;
};

// A device with a workspace for `limits`, which is full of NaNs at first.
struct CudaBench {
  explicit CudaBench(const OpsLimits& limits, uint64_t seed = 1, int num_sms = 132)
      : device(MakeCudaDevice(seed, num_sms)) {
    if (device == nullptr) return;
    workspace = std::make_unique<DeviceBuffer>(OpsWorkspaceBytes(*device, limits));
    device->SetWorkspace(workspace->as<void>(), workspace->bytes());
  }
  // The workspace must not go before what is queued is done.
  ~CudaBench() {
    if (device == nullptr) return;
    EXPECT_TRUE(device->Synchronize().ok());
  }
  std::unique_ptr<Device> device;
  std::unique_ptr<DeviceBuffer> workspace;
};

}  // namespace somnus::cuda_test
