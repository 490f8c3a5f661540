#pragma once
// The CUDA backend on a machine without a GPU: the same kernels, run by the emulator (kernels/emulator). For
// tests: slow, and faithful. No shipped program links this device.

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "kernels/device.h"

namespace somnus {

struct EmulatedCudaOptions {
  int index = 0;
  uint64_t seed = 1;  // of the order in which threads and blocks run; of the whole process
  int num_sms = 132;  // of the chip that plans cut work for
  // Run ops when queued instead of when somebody waits; of the whole process.
  bool eager = false;
  // The emulator's Options::find_races; of the whole process. Also where SOMNUS_EMULATOR_RACES or
  // SOMNUS_EMULATOR_BARRIERS is set, except in builds with a sanitizer, which do not observe kernels.
  bool find_races = false;
};

// kind() is kCuda. The device's memory is host memory: every device pointer must come from
// AllocateEmulatedDevice, or be announced by AdoptEmulatedDeviceMemory.
absl::StatusOr<std::unique_ptr<Device>> CreateEmulatedCudaDevice(const EmulatedCudaOptions& options);

// CheckCudaDevice (kernels/cuda/check.h) of the emulator.
absl::Status CheckEmulatedCudaDevice(int index);

// Allocates exactly as many bytes, full of NaNs, aligned to 256. ResourceExhausted beyond 80 GiB in all.
absl::StatusOr<void*> AllocateEmulatedDevice(int64_t bytes);
// Waits for the device first.
void FreeEmulatedDevice(void* data);

// The device's memory, in bytes. An allocator with a driver of its own reports taken and returned memory by
// Take and Return; Take returns false when there is not enough.
struct EmulatedDeviceMemory {
  int64_t total = 0;
  int64_t available = 0;
};
EmulatedDeviceMemory GetEmulatedDeviceMemory();
bool TakeEmulatedDeviceMemory(int64_t bytes);
void ReturnEmulatedDeviceMemory(int64_t bytes);

// Lets copies take memory of another allocator (a sleepable one over host memory) for the device's. Forget
// takes any part of the adopted memory.
void AdoptEmulatedDeviceMemory(void* data, int64_t bytes);
void ForgetEmulatedDeviceMemory(void* data, int64_t bytes);

// For memory of another allocator whose addresses end. Until then the race detector knows the null block of
// every KV cache to which ops have written there.
void ForgetEmulatedAddresses(void* data, int64_t bytes);

}  // namespace somnus
