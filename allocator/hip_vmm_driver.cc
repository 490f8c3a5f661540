// UNVERIFIED: see the header.
#include "allocator/hip_vmm_driver.h"

#include <dlfcn.h>
#include <hip/hip_runtime_api.h>

#include <algorithm>
#include <atomic>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace somnus {
namespace {

#define SOMNUS_HIP_ENTRY_POINTS(X)  \
  X(hipRuntimeGetVersion)           \
  X(hipGetErrorName)                \
  X(hipGetDeviceCount)              \
  X(hipSetDevice)                   \
  X(hipMemGetInfo)                  \
  X(hipMemGetAllocationGranularity) \
  X(hipMemAddressReserve)           \
  X(hipMemAddressFree)              \
  X(hipMemCreate)                   \
  X(hipMemRelease)                  \
  X(hipMemMap)                      \
  X(hipMemUnmap)                    \
  X(hipMemSetAccess)                \
  X(hipHostMalloc)                  \
  X(hipHostFree)                    \
  X(hipMemcpyDtoHAsync)             \
  X(hipMemcpyHtoDAsync)             \
  X(hipStreamCreateWithFlags)       \
  X(hipStreamDestroy)               \
  X(hipStreamSynchronize)

// C names alone: the header has overloads of some in C++.
struct HipApi {
  hipError_t (*hipRuntimeGetVersion)(int*) = nullptr;
  const char* (*hipGetErrorName)(hipError_t) = nullptr;
  hipError_t (*hipGetDeviceCount)(int*) = nullptr;
  hipError_t (*hipSetDevice)(int) = nullptr;
  hipError_t (*hipMemGetInfo)(size_t*, size_t*) = nullptr;
  hipError_t (*hipMemGetAllocationGranularity)(size_t*, const hipMemAllocationProp*,
                                               hipMemAllocationGranularity_flags) = nullptr;
  hipError_t (*hipMemAddressReserve)(void**, size_t, size_t, void*, unsigned long long) = nullptr;
  hipError_t (*hipMemAddressFree)(void*, size_t) = nullptr;
  hipError_t (*hipMemCreate)(hipMemGenericAllocationHandle_t*, size_t, const hipMemAllocationProp*,
                             unsigned long long) = nullptr;
  hipError_t (*hipMemRelease)(hipMemGenericAllocationHandle_t) = nullptr;
  hipError_t (*hipMemMap)(void*, size_t, size_t, hipMemGenericAllocationHandle_t,
                          unsigned long long) = nullptr;
  hipError_t (*hipMemUnmap)(void*, size_t) = nullptr;
  hipError_t (*hipMemSetAccess)(void*, size_t, const hipMemAccessDesc*, size_t) = nullptr;
  hipError_t (*hipHostMalloc)(void**, size_t, unsigned int) = nullptr;
  hipError_t (*hipHostFree)(void*) = nullptr;
  hipError_t (*hipMemcpyDtoHAsync)(void*, hipDeviceptr_t, size_t, hipStream_t) = nullptr;
  hipError_t (*hipMemcpyHtoDAsync)(hipDeviceptr_t, void*, size_t, hipStream_t) = nullptr;
  hipError_t (*hipStreamCreateWithFlags)(hipStream_t*, unsigned int) = nullptr;
  hipError_t (*hipStreamDestroy)(hipStream_t) = nullptr;
  hipError_t (*hipStreamSynchronize)(hipStream_t) = nullptr;

  static absl::StatusOr<HipApi> Load() {
    const std::string name = absl::StrCat("libamdhip64.so.", HIP_VERSION_MAJOR);
    void* const library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return absl::UnavailableError(absl::StrCat("there is no ", name));
    HipApi api;
#define SOMNUS_HIP_RESOLVE(entry)                                            \
  api.entry = reinterpret_cast<decltype(api.entry)>(dlsym(library, #entry)); \
  if (api.entry == nullptr) return absl::UnavailableError(absl::StrCat(name, " has no " #entry));
    SOMNUS_HIP_ENTRY_POINTS(SOMNUS_HIP_RESOLVE)
#undef SOMNUS_HIP_RESOLVE
    return api;
  }
};

class HipVmmDriver : public VmmDriver {
 public:
  HipVmmDriver(const HipApi& api, int device, const HipVmmDriverOptions& options)
      : api_(api),
        device_(device),
        chunk_bytes_(options.chunk_bytes),
        account_(options.account != nullptr ? options.account : HostMemoryAccount::Open()) {}
  ~HipVmmDriver() override {
    if (stream_ != nullptr && Enter().ok()) static_cast<void>(api_.hipStreamDestroy(stream_));
  }

  absl::Status Init() {
    int count = 0, version = 0;
    RETURN_IF_ERROR(Check("hipRuntimeGetVersion", api_.hipRuntimeGetVersion(&version)));
    if (version / 10000000 != HIP_VERSION_MAJOR)
      return absl::UnavailableError(absl::StrCat("the HIP runtime has version ", version));
    RETURN_IF_ERROR(Check("hipGetDeviceCount", api_.hipGetDeviceCount(&count)));
    if (device_ < 0 || device_ >= count) {
      return absl::UnavailableError(absl::StrCat("there is no HIP device ", device_, "; devices: ", count));
    }
    RETURN_IF_ERROR(Enter());
    RETURN_IF_ERROR(
        Check("hipStreamCreateWithFlags", api_.hipStreamCreateWithFlags(&stream_, hipStreamNonBlocking)));
    properties_.type = hipMemAllocationTypePinned;
    properties_.location = {hipMemLocationTypeDevice, device_};
    size_t granularity = 0;
    RETURN_IF_ERROR(Check("hipMemGetAllocationGranularity",
                          api_.hipMemGetAllocationGranularity(&granularity, &properties_,
                                                              hipMemAllocationGranularityRecommended)));
    granularity_ = static_cast<int64_t>(granularity);
    return absl::OkStatus();
  }

  int64_t Granularity() const override { return granularity_; }
  int64_t ChunkBytes() const override {
    return std::max(chunk_bytes_ / granularity_, int64_t{1}) * granularity_;
  }
  absl::StatusOr<int64_t> TotalBytes() override {
    size_t free = 0, total = 0;
    RETURN_IF_ERROR(MemoryInfo(&free, &total));
    return static_cast<int64_t>(total);
  }
  absl::StatusOr<int64_t> AvailableBytes() override {
    size_t free = 0, total = 0;
    RETURN_IF_ERROR(MemoryInfo(&free, &total));
    return static_cast<int64_t>(free);
  }

  absl::StatusOr<void*> Reserve(int64_t bytes) override {
    void* address = nullptr;
    RETURN_IF_ERROR(Enter());
    RETURN_IF_ERROR(
        Check("hipMemAddressReserve", api_.hipMemAddressReserve(&address, bytes, granularity_, nullptr, 0)));
    return address;
  }
  absl::Status FreeAddress(void* address, int64_t bytes) override {
    return Check("hipMemAddressFree", api_.hipMemAddressFree(address, bytes));
  }

  absl::StatusOr<Handle> Create(int64_t bytes) override {
    hipMemGenericAllocationHandle_t handle = nullptr;
    RETURN_IF_ERROR(Enter());
    RETURN_IF_ERROR(Check("hipMemCreate", api_.hipMemCreate(&handle, bytes, &properties_, 0)));
    Count(bytes);
    return reinterpret_cast<Handle>(handle);
  }
  absl::Status Release(Handle handle) override {
    return Check("hipMemRelease", api_.hipMemRelease(Native(handle)));
  }

  absl::Status Map(void* address, int64_t bytes, Handle handle) override {
    RETURN_IF_ERROR(Enter());
    return Check("hipMemMap", api_.hipMemMap(address, bytes, 0, Native(handle), 0));
  }
  absl::Status Unmap(void* address, int64_t bytes) override {
    RETURN_IF_ERROR(Enter());
    return Check("hipMemUnmap", api_.hipMemUnmap(address, bytes));
  }
  absl::Status SetAccess(void* address, int64_t bytes) override {
    hipMemAccessDesc access = {};
    access.location = properties_.location;
    access.flags = hipMemAccessFlagsProtReadWrite;
    RETURN_IF_ERROR(Enter());
    return Check("hipMemSetAccess", api_.hipMemSetAccess(address, bytes, &access, 1));
  }

  absl::StatusOr<void*> AllocateHost(int64_t bytes) override {
    ASSIGN_OR_RETURN(const HostReservation reservation, account_->Reserve(bytes));
    void* data = nullptr;
    RETURN_IF_ERROR(Enter());
    RETURN_IF_ERROR(Check("hipHostMalloc",
                          api_.hipHostMalloc(&data, bytes, hipHostMallocPortable | hipHostMallocMapped)));
    return data;
  }
  void FreeHost(void* data, int64_t bytes) override {
    if (Enter().ok()) static_cast<void>(api_.hipHostFree(data));
  }
  absl::Status CopyToHost(void* host, const void* device, int64_t bytes) override {
    RETURN_IF_ERROR(Enter());
    queued_bytes_ += bytes;
    return Check("hipMemcpyDtoHAsync",
                 api_.hipMemcpyDtoHAsync(host, const_cast<void*>(device), bytes, stream_));
  }
  absl::Status CopyFromHost(void* device, const void* host, int64_t bytes) override {
    RETURN_IF_ERROR(Enter());
    queued_bytes_ += bytes;
    return Check("hipMemcpyHtoDAsync",
                 api_.hipMemcpyHtoDAsync(device, const_cast<void*>(host), bytes, stream_));
  }
  absl::Status Synchronize() override {
    RETURN_IF_ERROR(Enter());
    RETURN_IF_ERROR(Check("hipStreamSynchronize", api_.hipStreamSynchronize(stream_)));
    Count(queued_bytes_.exchange(0));
    return absl::OkStatus();
  }

 private:
  static hipMemGenericAllocationHandle_t Native(Handle handle) {
    return reinterpret_cast<hipMemGenericAllocationHandle_t>(handle);
  }

  absl::Status MemoryInfo(size_t* free, size_t* total) {
    RETURN_IF_ERROR(Enter());
    return Check("hipMemGetInfo", api_.hipMemGetInfo(free, total));
  }

  // Calls come from any thread, and each has a current device of its own.
  absl::Status Enter() { return Check("hipSetDevice", api_.hipSetDevice(device_)); }

  absl::Status Check(const char* call, hipError_t result) const {
    if (result == hipSuccess) return absl::OkStatus();
    const std::string text = absl::StrCat(call, ": ", api_.hipGetErrorName(result));
    return result == hipErrorOutOfMemory ? absl::ResourceExhaustedError(text) : absl::InternalError(text);
  }

  const HipApi api_;
  const int device_;
  const int64_t chunk_bytes_;
  const std::shared_ptr<HostMemoryAccount> account_;
  hipStream_t stream_ = nullptr;
  hipMemAllocationProp properties_ = {};
  int64_t granularity_ = 0;
  std::atomic<int64_t> queued_bytes_{0};  // of copies, until somebody waits for the copies
};

}  // namespace

absl::StatusOr<std::unique_ptr<VmmDriver>> MakeHipVmmDriver(int device_index,
                                                            const HipVmmDriverOptions& options) {
  ASSIGN_OR_RETURN(const HipApi api, HipApi::Load());
  auto driver = std::make_unique<HipVmmDriver>(api, device_index, options);
  RETURN_IF_ERROR(driver->Init());
  return driver;
}

}  // namespace somnus
