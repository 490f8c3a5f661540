#include "allocator/cuda_vmm_driver.h"

#include <cuda.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "allocator/cuda_driver_api.h"
#include "allocator/host_pages.h"
#include "base/status_macros.h"

namespace somnus {
namespace {

CUdeviceptr Pointer(const void* address) { return reinterpret_cast<CUdeviceptr>(address); }

class CudaVmmDriver : public VmmDriver {
 public:
  CudaVmmDriver(const CudaDriverApi& api, const CudaVmmDriverOptions& options)
      : api_(api),
        chunk_bytes_(options.chunk_bytes),
        numa_nodes_(options.numa_nodes),
        account_(options.account != nullptr ? options.account : HostMemoryAccount::Open()) {}
  ~CudaVmmDriver() override {
    if (context_ == nullptr) return;
    if (api_.cuCtxSetCurrent_fn(context_) == CUDA_SUCCESS && stream_ != nullptr)
      api_.cuStreamDestroy_fn(stream_);
    api_.cuDevicePrimaryCtxRelease_fn(device_);
  }

  absl::Status Init(int device_index) {
    int count = 0;
    if (absl::Status status = Check("cuDeviceGetCount", api_.cuDeviceGetCount_fn(&count)); !status.ok())
      return status;
    if (device_index < 0 || device_index >= count) {
      return absl::UnavailableError(
          absl::StrCat("there is no CUDA device ", device_index, "; devices: ", count));
    }
    if (absl::Status status = Check("cuDeviceGet", api_.cuDeviceGet_fn(&device_, device_index));
        !status.ok()) {
      return status;
    }
    if (Attribute(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED) == 0) {
      return absl::UnavailableError(
          absl::StrCat("CUDA device ", device_index, " cannot manage virtual memory"));
    }
    absl::Status status =
        Check("cuDevicePrimaryCtxRetain", api_.cuDevicePrimaryCtxRetain_fn(&context_, device_));
    if (status.ok()) status = Enter();
    if (status.ok()) {
      status = Check("cuStreamCreate", api_.cuStreamCreate_fn(&stream_, CU_STREAM_NON_BLOCKING));
    }
    if (!status.ok()) return status;
    properties_.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties_.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device_};
    size_t granularity = 0;
    status = Check("cuMemGetAllocationGranularity",
                   api_.cuMemGetAllocationGranularity_fn(&granularity, &properties_,
                                                         CU_MEM_ALLOC_GRANULARITY_RECOMMENDED));
    granularity_ = static_cast<int64_t>(granularity);
    if (status.ok() && Attribute(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED) != 0) {
      properties_.allocFlags.gpuDirectRDMACapable = TakesRdma() ? 1 : 0;
    }
    return status;
  }

  int64_t Granularity() const override { return granularity_; }
  int64_t ChunkBytes() const override {
    return std::max(chunk_bytes_ / granularity_, int64_t{1}) * granularity_;
  }

  absl::StatusOr<int64_t> TotalBytes() override {
    size_t free = 0, total = 0;
    absl::Status status = MemoryInfo(&free, &total);
    if (!status.ok()) return status;
    return static_cast<int64_t>(total);
  }

  absl::StatusOr<int64_t> AvailableBytes() override {
    size_t free = 0, total = 0;
    absl::Status status = MemoryInfo(&free, &total);
    if (!status.ok()) return status;
    return static_cast<int64_t>(free);
  }

  absl::StatusOr<void*> Reserve(int64_t bytes) override {
    CUdeviceptr address = 0;
    absl::Status status = Enter();
    if (status.ok()) {
      status = Check("cuMemAddressReserve", api_.cuMemAddressReserve_fn(&address, bytes, granularity_, 0, 0));
    }
    if (!status.ok()) return status;
    return reinterpret_cast<void*>(address);
  }
  absl::Status FreeAddress(void* address, int64_t bytes) override {
    return Check("cuMemAddressFree", api_.cuMemAddressFree_fn(Pointer(address), bytes));
  }

  absl::StatusOr<Handle> Create(int64_t bytes) override {
    if (absl::Status status = Enter(); !status.ok()) return status;
    CUmemGenericAllocationHandle handle = 0;
    if (absl::Status status = Check("cuMemCreate", api_.cuMemCreate_fn(&handle, bytes, &properties_, 0));
        !status.ok()) {
      return status;
    }
    Count(bytes);
    return handle;
  }
  absl::Status Release(Handle handle) override { return Check("cuMemRelease", api_.cuMemRelease_fn(handle)); }

  absl::Status Map(void* address, int64_t bytes, Handle handle) override {
    if (absl::Status status = Enter(); !status.ok()) return status;
    return Check("cuMemMap", api_.cuMemMap_fn(Pointer(address), bytes, 0, handle, 0));
  }
  absl::Status Unmap(void* address, int64_t bytes) override {
    if (absl::Status status = Enter(); !status.ok()) return status;
    return Check("cuMemUnmap", api_.cuMemUnmap_fn(Pointer(address), bytes));
  }
  absl::Status SetAccess(void* address, int64_t bytes) override {
    if (absl::Status status = Enter(); !status.ok()) return status;
    CUmemAccessDesc access = {};
    access.location = properties_.location;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    return Check("cuMemSetAccess", api_.cuMemSetAccess_fn(Pointer(address), bytes, &access, 1));
  }

  absl::StatusOr<void*> AllocateHost(int64_t bytes) override {
    // Pinned memory is resident when the call returns. Without the reservation two ranks of a host that both
    // find enough memory free could take the same memory.
    ASSIGN_OR_RETURN(const HostReservation reservation, account_->Reserve(bytes));
    RETURN_IF_ERROR(Enter());
    ASSIGN_OR_RETURN(void* const data, MapResidentPages(bytes, numa_nodes_));
    // Kernels reach this memory, too: a swap of blocks asks for the memory's address on the device.
    constexpr unsigned kFlags = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP;
    absl::Status status = Check("cuMemHostRegister", api_.cuMemHostRegister_fn(data, bytes, kFlags));
    if (status.ok()) return data;
    UnmapPages(data, bytes);
    return status;
  }
  void FreeHost(void* data, int64_t bytes) override {
    // Pages that the device may still reach must stay.
    if (Enter().ok() && api_.cuMemHostUnregister_fn(data) == CUDA_SUCCESS) UnmapPages(data, bytes);
  }

  absl::Status CopyToHost(void* host, const void* device, int64_t bytes) override {
    if (absl::Status status = Enter(); !status.ok()) return status;
    return CountWhenDone(
        bytes, Check("cuMemcpyDtoHAsync", api_.cuMemcpyDtoHAsync_fn(host, Pointer(device), bytes, stream_)));
  }
  absl::Status CopyFromHost(void* device, const void* host, int64_t bytes) override {
    if (absl::Status status = Enter(); !status.ok()) return status;
    return CountWhenDone(
        bytes, Check("cuMemcpyHtoDAsync", api_.cuMemcpyHtoDAsync_fn(Pointer(device), host, bytes, stream_)));
  }
  absl::Status Synchronize() override {
    if (absl::Status status = Enter(); !status.ok()) return status;
    return Check("cuStreamSynchronize", api_.cuStreamSynchronize_fn(stream_));
  }

 private:
  // Some systems report GPUDirect RDMA and still refuse (no peer memory module in the kernel): tried once,
  // with the smallest piece of memory.
  bool TakesRdma() {
    CUmemAllocationProp properties = properties_;
    properties.allocFlags.gpuDirectRDMACapable = 1;
    CUmemGenericAllocationHandle handle = 0;
    if (api_.cuMemCreate_fn(&handle, granularity_, &properties, 0) != CUDA_SUCCESS) return false;
    api_.cuMemRelease_fn(handle);
    return true;
  }

  struct Copied {
    ByteMeter* meter;
    int64_t bytes;
  };

  // Behind a copy that was queued, the stream counts the bytes; where the stream cannot, nobody counts.
  absl::Status CountWhenDone(int64_t bytes, absl::Status queued) {
    if (!queued.ok() || meter() == nullptr) return queued;
    const auto count = [](void* data) {
      const std::unique_ptr<Copied> copied(static_cast<Copied*>(data));
      copied->meter->Advance(copied->bytes);
    };
    auto copied = std::make_unique<Copied>(Copied{meter(), bytes});
    if (api_.cuLaunchHostFunc_fn(stream_, count, copied.get()) == CUDA_SUCCESS) copied.release();
    return queued;
  }

  absl::Status MemoryInfo(size_t* free, size_t* total) {
    absl::Status status = Enter();
    if (status.ok()) status = Check("cuMemGetInfo", api_.cuMemGetInfo_fn(free, total));
    return status;
  }

  // Calls come from any thread, and each has a current context of its own.
  absl::Status Enter() { return Check("cuCtxSetCurrent", api_.cuCtxSetCurrent_fn(context_)); }

  int Attribute(CUdevice_attribute attribute) {
    int value = 0;
    return api_.cuDeviceGetAttribute_fn(&value, attribute, device_) == CUDA_SUCCESS ? value : 0;
  }

  absl::Status Check(const char* call, CUresult result) {
    if (result == CUDA_SUCCESS) return absl::OkStatus();
    const char* name = nullptr;
    api_.cuGetErrorName_fn(result, &name);
    const std::string text = absl::StrCat(call, ": ", name == nullptr ? absl::StrCat(result).c_str() : name);
    return result == CUDA_ERROR_OUT_OF_MEMORY ? absl::ResourceExhaustedError(text)
                                              : absl::InternalError(text);
  }

  const CudaDriverApi& api_;
  const int64_t chunk_bytes_;
  const std::vector<int> numa_nodes_;
  const std::shared_ptr<HostMemoryAccount> account_;
  CUdevice device_ = 0;
  CUcontext context_ = nullptr;
  CUstream stream_ = nullptr;
  CUmemAllocationProp properties_ = {};
  int64_t granularity_ = 0;
};

}  // namespace

absl::StatusOr<std::unique_ptr<VmmDriver>> MakeCudaVmmDriver(int device_index,
                                                             const CudaVmmDriverOptions& options) {
  absl::StatusOr<const CudaDriverApi*> api = CudaDriverApi::Load();
  if (!api.ok()) return api.status();
  return MakeCudaVmmDriver(**api, device_index, options);
}

absl::StatusOr<std::unique_ptr<VmmDriver>> MakeCudaVmmDriver(const CudaDriverApi& api, int device_index,
                                                             const CudaVmmDriverOptions& options) {
  auto driver = std::make_unique<CudaVmmDriver>(api, options);
  if (absl::Status status = driver->Init(device_index); !status.ok()) return status;
  return driver;
}

absl::StatusOr<std::string> CudaPciBusId(int device_index) {
  absl::StatusOr<const CudaDriverApi*> api = CudaDriverApi::Load();
  if (!api.ok()) return api.status();
  return CudaPciBusId(**api, device_index);
}

absl::StatusOr<std::string> CudaPciBusId(const CudaDriverApi& api, int device_index) {
  CUdevice device = 0;
  int domain = 0, bus = 0, slot = 0;
  const bool is_known =
      api.cuDeviceGet_fn(&device, device_index) == CUDA_SUCCESS &&
      api.cuDeviceGetAttribute_fn(&domain, CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID, device) == CUDA_SUCCESS &&
      api.cuDeviceGetAttribute_fn(&bus, CU_DEVICE_ATTRIBUTE_PCI_BUS_ID, device) == CUDA_SUCCESS &&
      api.cuDeviceGetAttribute_fn(&slot, CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID, device) == CUDA_SUCCESS;
  if (!is_known)
    return absl::UnavailableError(absl::StrCat("CUDA device ", device_index, " has no PCI address"));
  return absl::StrCat(absl::Hex(domain, absl::kZeroPad4), ":", absl::Hex(bus, absl::kZeroPad2), ":",
                      absl::Hex(slot, absl::kZeroPad2), ".0");
}

}  // namespace somnus
