#pragma once
// The common code of tests of CUDA ops. The same test source is built twice: against the emulator (a test of
// CI), and against the real backend (gpu_tests, or NAME_gpu_test), where the test skips when there is no GPU.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "kernels/cuda_api.h"
#include "kernels/device.h"
#include "kernels/ops.h"
#ifdef SOMNUS_CUDA_EMULATOR
#include "kernels/cuda/emulated_device.h"
#endif

namespace somnus::cuda_test {

// Makes an emulated device with this schedule and size, or opens the first GPU (the arguments are ignored);
// nullptr without a GPU.
inline std::unique_ptr<Device> MakeCudaDevice(uint64_t seed = 1, int num_sms = 132) {
#ifdef SOMNUS_CUDA_EMULATOR
  // Changes the schedule for all tests of a run.
  if (const char* const extra = std::getenv("SOMNUS_EMULATOR_SEED"))
    seed += std::strtoull(extra, nullptr, 10);
  auto device = CreateEmulatedCudaDevice({.seed = seed, .num_sms = num_sms});
  EXPECT_TRUE(device.ok()) << device.status();
#else
  auto device = Device::CreateCuda(0);
#endif
  return device.ok() ? *std::move(device) : nullptr;
}

// For a test or fixture; `device` is what MakeCudaDevice returned.
#define SOMNUS_SKIP_WITHOUT_GPU(device) \
  if ((device) == nullptr) GTEST_SKIP() << ::somnus::Device::CreateCuda(0).status()

// Memory of the device, aligned to 256 bytes and full of NaNs, with guard bytes behind, which are checked at
// the end (emulated, with address sanitizer: exactly as long, nothing behind). The host reaches the memory by
// copies alone. A copy is done when the call returns, and does not wait for work that was queued on a device:
// the test does that.
class DeviceBuffer {
 public:
  explicit DeviceBuffer(int64_t bytes) : bytes_(bytes) {
    const int64_t all = std::max<int64_t>(bytes + kGuard, 1);
#ifdef SOMNUS_CUDA_EMULATOR
    auto memory = AllocateEmulatedDevice(all);
    EXPECT_TRUE(memory.ok()) << memory.status();
    data_ = static_cast<char*>(memory.value_or(nullptr));
#else
    EXPECT_EQ(cudaMalloc(&data_, static_cast<size_t>(all)), cudaSuccess);
#endif
    std::string contents(static_cast<size_t>(bytes), '\xff');
    contents.append(static_cast<size_t>(kGuard), kGuardByte);
    Copy(data_, contents.data(), bytes + kGuard);
  }
  ~DeviceBuffer() {
#ifndef SOMNUS_CUDA_EMULATOR
    cudaDeviceSynchronize();
#endif
    std::string guard(static_cast<size_t>(kGuard), '\0');
    Copy(guard.data(), data_ + bytes_, kGuard);
    EXPECT_EQ(guard, std::string(guard.size(), kGuardByte))
        << "written behind a buffer of " << bytes_ << " bytes";
#ifdef SOMNUS_CUDA_EMULATOR
    FreeEmulatedDevice(data_);
#else
    cudaFree(data_);
#endif
  }
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;

  // For ops. The host must not dereference the pointer.
  template <typename T>
  T* device() {
    return static_cast<T*>(static_cast<void*>(data_));
  }
  int64_t bytes() const { return bytes_; }

  void Write(int64_t offset, const void* from, int64_t bytes) { Copy(data_ + offset, from, bytes); }
  void Read(int64_t offset, void* to, int64_t bytes) const { Copy(to, data_ + offset, bytes); }
  std::string Bytes(int64_t offset, int64_t bytes) const {
    std::string copy(static_cast<size_t>(bytes), '\0');
    Read(offset, copy.data(), bytes);
    return copy;
  }
  std::string Bytes() const { return Bytes(0, bytes_); }
  // The whole buffer, as elements.
  template <typename T>
  std::vector<T> Values() const {
    std::vector<T> values(static_cast<size_t>(bytes_) / sizeof(T));
    Read(0, values.data(), static_cast<int64_t>(values.size() * sizeof(T)));
    return values;
  }

 private:
  static void Copy(void* to, const void* from, int64_t bytes) {
#ifdef SOMNUS_CUDA_EMULATOR
    using namespace cuda_emulated;
#endif
    if (bytes == 0) return;
    EXPECT_EQ(cudaMemcpy(to, from, static_cast<size_t>(bytes), cudaMemcpyDefault), cudaSuccess);
    // A copy from pageable memory returns once staged, and a device's stream waits for no other stream.
    EXPECT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
  }

#ifdef __SANITIZE_ADDRESS__
  static constexpr int64_t kGuard = 0;
#else
  static constexpr int64_t kGuard = 256;
#endif
  static constexpr char kGuardByte = 0x5b;

  int64_t bytes_;
  char* data_ = nullptr;
};

// A device with a workspace for `limits`, which is full of NaNs at first.
struct CudaBench {
  explicit CudaBench(const OpsLimits& limits, uint64_t seed = 1, int num_sms = 132)
      : device(MakeCudaDevice(seed, num_sms)) {
    if (device == nullptr) return;
    workspace = std::make_unique<DeviceBuffer>(OpsWorkspaceBytes(*device, limits));
    device->SetWorkspace(workspace->device<void>(), workspace->bytes());
  }
  // The workspace must not go before queued work is done.
  ~CudaBench() {
    if (device == nullptr) return;
    EXPECT_TRUE(device->Synchronize().ok());
  }
  std::unique_ptr<Device> device;
  std::unique_ptr<DeviceBuffer> workspace;
};

}  // namespace somnus::cuda_test
