#include "kernels/cuda/emulated_device.h"

#include <cstdlib>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/emulator/options.h"

namespace somnus {
namespace {

bool EnvironmentAsksForRaces() {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return false;
#else
  return std::getenv("SOMNUS_EMULATOR_RACES") != nullptr ||
         std::getenv("SOMNUS_EMULATOR_BARRIERS") != nullptr;
#endif
}

}  // namespace

absl::StatusOr<std::unique_ptr<Device>> CreateEmulatedCudaDevice(const EmulatedCudaOptions& options) {
  cuda_emulated::emulator::Options emulator = cuda_emulated::emulator::GetOptions();
  emulator.seed = options.seed;
  emulator.eager = options.eager;
  emulator.num_sms = options.num_sms;
  emulator.find_races = options.find_races || EnvironmentAsksForRaces();
  cuda_emulated::emulator::SetOptions(emulator);
  absl::StatusOr<std::unique_ptr<cuda_emulated::CudaDevice>> device =
      cuda_emulated::CudaDevice::Create(options.index);
  if (!device.ok()) return device.status();
  return *std::move(device);
}

absl::Status CheckEmulatedCudaDevice(int index) { return cuda_emulated::CheckDevice(index); }

absl::StatusOr<void*> AllocateEmulatedDevice(int64_t bytes) {
  void* data = nullptr;
  const cuda_emulated::cudaError_t error = cuda_emulated::cudaMalloc(&data, static_cast<size_t>(bytes));
  if (error == cuda_emulated::cudaSuccess) return data;
  return absl::ResourceExhaustedError(absl::StrCat(
      "allocating ", bytes, " bytes of the emulated device: ", cuda_emulated::cudaGetErrorString(error)));
}

void FreeEmulatedDevice(void* data) { cuda_emulated::cudaFree(data); }

EmulatedDeviceMemory GetEmulatedDeviceMemory() {
  size_t available = 0, total = 0;
  cuda_emulated::cudaMemGetInfo(&available, &total);
  return {static_cast<int64_t>(total), static_cast<int64_t>(available)};
}

bool TakeEmulatedDeviceMemory(int64_t bytes) { return cuda_emulated::emulator::TakeDeviceMemory(bytes); }
void ReturnEmulatedDeviceMemory(int64_t bytes) { cuda_emulated::emulator::ReturnDeviceMemory(bytes); }

void AdoptEmulatedDeviceMemory(void* data, int64_t bytes) {
  cuda_emulated::emulator::AdoptDeviceMemory(data, bytes);
}
void ForgetEmulatedDeviceMemory(void* data, int64_t bytes) {
  cuda_emulated::emulator::ForgetDeviceMemory(data, bytes);
}

void ForgetEmulatedAddresses(void* data, int64_t bytes) {
  cuda_emulated::emulator::FindRacesAgain(data, bytes);
}

}  // namespace somnus
