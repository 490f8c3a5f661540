#pragma once
// The entry points of libcuda that the driver uses, found at run time.

#include <cuda.h>

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "allocator/cuda_vmm_driver.h"

namespace somnus {

// Each member has the type that cuda.h declares; cuda.h's macros map names to their versioned symbols.
#define SOMNUS_CUDA_ENTRY_POINTS(X) \
  X(cuInit)                         \
  X(cuGetErrorName)                 \
  X(cuDeviceGet)                    \
  X(cuDeviceGetCount)               \
  X(cuDeviceGetAttribute)           \
  X(cuDevicePrimaryCtxRetain)       \
  X(cuDevicePrimaryCtxRelease)      \
  X(cuCtxSetCurrent)                \
  X(cuMemGetInfo)                   \
  X(cuMemGetAllocationGranularity)  \
  X(cuMemAddressReserve)            \
  X(cuMemAddressFree)               \
  X(cuMemCreate)                    \
  X(cuMemRelease)                   \
  X(cuMemMap)                       \
  X(cuMemUnmap)                     \
  X(cuMemSetAccess)                 \
  X(cuMemHostRegister)              \
  X(cuMemHostUnregister)            \
  X(cuMemcpyDtoHAsync)              \
  X(cuMemcpyHtoDAsync)              \
  X(cuStreamCreate)                 \
  X(cuStreamDestroy)                \
  X(cuStreamSynchronize)            \
  X(cuLaunchHostFunc)

struct CudaDriverApi {
#define SOMNUS_CUDA_MEMBER(name) decltype(&::name) name##_fn = nullptr;
  SOMNUS_CUDA_ENTRY_POINTS(SOMNUS_CUDA_MEMBER)
#undef SOMNUS_CUDA_MEMBER

  // Loaded once per process and never unloaded. Unavailable names the missing part.
  static absl::StatusOr<const CudaDriverApi*> Load();
};

// Makes the driver over these entry points, which must outlive the driver. Tests pass their own.
absl::StatusOr<std::unique_ptr<VmmDriver>> MakeCudaVmmDriver(const CudaDriverApi& api, int device_index,
                                                             const CudaVmmDriverOptions& options);
absl::StatusOr<std::string> CudaPciBusId(const CudaDriverApi& api, int device_index);

}  // namespace somnus
