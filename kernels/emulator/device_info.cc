// Errors, devices and options of runtime.h and options.h.

#include <cstdio>

#include "kernels/emulator/runtime_state.h"

namespace somnus::cuda_emulated {

using emulator::Return;
using emulator::Runtime;

namespace {

constinit thread_local cudaError_t last_error = cudaSuccess;
constinit thread_local int current_device = 0;

struct ErrorText {
  cudaError_t error;
  const char* name;
  const char* text;
};
#define SOMNUS_ERROR(name, text) \
  { name, #name, text }
constexpr ErrorText kErrors[] = {
    SOMNUS_ERROR(cudaSuccess, "no error"),
    SOMNUS_ERROR(cudaErrorInvalidValue, "invalid argument"),
    SOMNUS_ERROR(cudaErrorMemoryAllocation, "out of memory"),
    SOMNUS_ERROR(cudaErrorInvalidConfiguration, "invalid configuration argument"),
    SOMNUS_ERROR(cudaErrorInsufficientDriver, "CUDA driver version is insufficient for CUDA runtime version"),
    SOMNUS_ERROR(cudaErrorNoDevice, "no CUDA-capable device is detected"),
    SOMNUS_ERROR(cudaErrorInvalidDevice, "invalid device ordinal"),
    SOMNUS_ERROR(cudaErrorDeviceUninitialized, "invalid device context"),
    SOMNUS_ERROR(cudaErrorInvalidResourceHandle, "invalid resource handle"),
    SOMNUS_ERROR(cudaErrorNotReady, "device not ready"),
    SOMNUS_ERROR(cudaErrorStreamCaptureUnsupported, "operation not permitted when stream is capturing"),
    SOMNUS_ERROR(cudaErrorStreamCaptureInvalidated,
                 "operation failed due to a previous error during capture"),
    SOMNUS_ERROR(cudaErrorStreamCaptureMerge,
                 "operation would result in a merge of separate capture sequences"),
    SOMNUS_ERROR(cudaErrorStreamCaptureUnmatched, "capture was not ended in the same stream as it began"),
    SOMNUS_ERROR(cudaErrorStreamCaptureUnjoined, "capturing stream has unjoined work"),
    SOMNUS_ERROR(cudaErrorStreamCaptureIsolation, "dependency created on uncaptured work in another stream"),
    SOMNUS_ERROR(cudaErrorStreamCaptureImplicit,
                 "operation would make the legacy stream depend on a capturing blocking stream"),
    SOMNUS_ERROR(cudaErrorCapturedEvent,
                 "operation not permitted on an event last recorded in a capturing stream"),
    SOMNUS_ERROR(cudaErrorUnknown, "unknown error"),
};
#undef SOMNUS_ERROR

const ErrorText& TextOf(cudaError_t error) {
  for (const ErrorText& text : kErrors) {
    if (text.error == error) return text;
  }
  return kErrors[std::size(kErrors) - 1];
}

}  // namespace

namespace emulator {

cudaError_t Return(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}

int CurrentDevice() { return current_device; }

void SetOptions(const Options& options) {
  const Runtime::Lock lock = Runtime::Get().Acquire();
  Runtime::Get().options = options;
}

Options GetOptions() {
  const Runtime::Lock lock = Runtime::Get().Acquire();
  return Runtime::Get().options;
}

}  // namespace emulator

const char* cudaGetErrorName(cudaError_t error) { return TextOf(error).name; }
const char* cudaGetErrorString(cudaError_t error) { return TextOf(error).text; }
cudaError_t cudaGetLastError() {
  const cudaError_t error = last_error;
  last_error = cudaSuccess;
  return error;
}

cudaError_t cudaDriverGetVersion(int* version) {
  if (version == nullptr) return Return(cudaErrorInvalidValue);
  *version = emulator::GetOptions().driver_version;
  return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int* version) {
  if (version == nullptr) return Return(cudaErrorInvalidValue);
  *version = emulator::kRuntimeVersion;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int* count) {
  if (count == nullptr) return Return(cudaErrorInvalidValue);
  if (emulator::GetOptions().driver_version / 1000 < emulator::kRuntimeVersion / 1000) {
    return Return(cudaErrorInsufficientDriver);
  }
  *count = emulator::GetOptions().num_devices;
  return *count == 0 ? Return(cudaErrorNoDevice) : cudaSuccess;
}

cudaError_t cudaDeviceGetP2PAttribute(int* value, cudaDeviceP2PAttr attribute, int from, int to) {
  const emulator::Options options = emulator::GetOptions();
  const auto known = [&](int device) { return device >= 0 && device < options.num_devices; };
  if (value == nullptr || !known(from) || !known(to) || from == to) return Return(cudaErrorInvalidValue);
  switch (attribute) {
    case cudaDevP2PAttrPerformanceRank:
      *value = options.has_nvlink ? 0 : 1;
      return cudaSuccess;
    case cudaDevP2PAttrNativeAtomicSupported:
      *value = options.has_nvlink ? 1 : 0;
      return cudaSuccess;
  }
  return Return(cudaErrorInvalidValue);
}

cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= emulator::GetOptions().num_devices) return Return(cudaErrorInvalidDevice);
  current_device = device;
  return cudaSuccess;
}

cudaError_t cudaGetDevice(int* device) {
  if (device == nullptr) return Return(cudaErrorInvalidValue);
  *device = current_device;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  const emulator::Options options = emulator::GetOptions();
  if (properties == nullptr) return Return(cudaErrorInvalidValue);
  if (device < 0 || device >= options.num_devices) return Return(cudaErrorInvalidDevice);
  *properties = {};
  std::snprintf(properties->name, sizeof properties->name, "emulated H100 (CPU)");
  properties->uuid.bytes[0] = static_cast<char>(1 + device);
  properties->totalGlobalMem = static_cast<size_t>(options.device_bytes);
  properties->sharedMemPerBlock = 48 << 10;
  properties->sharedMemPerBlockOptin = 227 << 10;
  properties->sharedMemPerMultiprocessor = 228 << 10;
  properties->l2CacheSize = 50 << 20;
  properties->multiProcessorCount = options.num_sms;
  properties->maxThreadsPerMultiProcessor = 2048;
  properties->major = options.compute_capability / 10;
  properties->minor = options.compute_capability % 10;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  const emulator::Options options = emulator::GetOptions();
  if (value == nullptr) return Return(cudaErrorInvalidValue);
  if (device < 0 || device >= options.num_devices) return Return(cudaErrorInvalidDevice);
  switch (attribute) {
    case cudaDevAttrMultiProcessorCount:
      *value = options.num_sms;
      return cudaSuccess;
    case cudaDevAttrL2CacheSize:
      *value = 50 << 20;
      return cudaSuccess;
    case cudaDevAttrComputeCapabilityMajor:
      *value = options.compute_capability / 10;
      return cudaSuccess;
    case cudaDevAttrComputeCapabilityMinor:
      *value = options.compute_capability % 10;
      return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
      *value = 228 << 10;
      return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = 227 << 10;
      return cudaSuccess;
  }
  return Return(cudaErrorInvalidValue);
}

cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  if (free == nullptr || total == nullptr) return Return(cudaErrorInvalidValue);
  const Runtime::Lock lock = Runtime::Get().Acquire();
  const Runtime& runtime = Runtime::Get();
  *total = static_cast<size_t>(runtime.options.device_bytes);
  *free = static_cast<size_t>(runtime.options.device_bytes - runtime.device_bytes_used);
  return cudaSuccess;
}

}  // namespace somnus::cuda_emulated
