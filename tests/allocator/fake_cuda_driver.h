#pragma once
// The entry points of libcuda that the allocator calls, without a device: the fake counts calls, and fails on
// command. Device memory exists as numbers only. There may be one fake at a time, because entry points are
// plain functions; not thread safe.

#include <cuda.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "allocator/cuda_driver_api.h"

namespace somnus {

class FakeCudaDriver {
 public:
  static constexpr int64_t kGranularity = 2 << 20;

  explicit FakeCudaDriver(bool reports_rdma = true, bool takes_rdma = true)
      : reports_rdma_(reports_rdma), takes_rdma_(takes_rdma) {
    current_ = this;
    FillLifecycle();
    FillMemory();
  }
  ~FakeCudaDriver() { current_ = nullptr; }

  const CudaDriverApi& api() const { return api_; }
  int calls(const std::string& name) const {
    const auto it = calls_.find(name);
    return it == calls_.end() ? 0 : it->second;
  }
  // Whether each cuMemCreate asked for GPUDirect RDMA, and for how many bytes.
  const std::vector<bool>& asked_rdma() const { return asked_rdma_; }
  const std::vector<size_t>& created() const { return created_; }
  unsigned host_register_flags() const { return host_register_flags_; }  // of the last cuMemHostRegister

  std::function<CUresult(void* data, size_t bytes)> on_host_register = [](void*, size_t) {
    return CUDA_SUCCESS;
  };

 private:
  static CUresult Count(const char* name) {
    ++current_->calls_[name];
    return CUDA_SUCCESS;
  }

  void FillLifecycle() {
    api_.cuGetErrorName_fn = [](CUresult, const char** name) {
      *name = "CUDA_ERROR_FAKE";
      return CUDA_SUCCESS;
    };
    api_.cuDeviceGet_fn = [](CUdevice* device, int index) {
      *device = index;
      return Count("cuDeviceGet");
    };
    api_.cuDeviceGetCount_fn = [](int* count) {
      *count = 1;
      return Count("cuDeviceGetCount");
    };
    api_.cuDeviceGetAttribute_fn = [](int* value, CUdevice_attribute attribute, CUdevice) {
      const bool rdma = attribute == CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED;
      *value = rdma ? current_->reports_rdma_ : 1;
      return CUDA_SUCCESS;
    };
    api_.cuDevicePrimaryCtxRetain_fn = [](CUcontext* context, CUdevice) {
      *context = reinterpret_cast<CUcontext>(8);
      return CUDA_SUCCESS;
    };
    api_.cuDevicePrimaryCtxRelease_fn = [](CUdevice) { return CUDA_SUCCESS; };
    api_.cuCtxSetCurrent_fn = [](CUcontext) { return CUDA_SUCCESS; };
    api_.cuStreamCreate_fn = [](CUstream* stream, unsigned) {
      *stream = reinterpret_cast<CUstream>(16);
      return CUDA_SUCCESS;
    };
    api_.cuStreamDestroy_fn = [](CUstream) { return CUDA_SUCCESS; };
    api_.cuStreamSynchronize_fn = [](CUstream) { return Count("cuStreamSynchronize"); };
    api_.cuMemcpyDtoHAsync_fn = [](void*, CUdeviceptr, size_t, CUstream) {
      return Count("cuMemcpyDtoHAsync");
    };
    api_.cuMemcpyHtoDAsync_fn = [](CUdeviceptr, const void*, size_t, CUstream) {
      return Count("cuMemcpyHtoDAsync");
    };
    // The stream has nothing to do.
    api_.cuLaunchHostFunc_fn = [](CUstream, CUhostFn function, void* data) {
      function(data);
      return Count("cuLaunchHostFunc");
    };
  }

  void FillMemory() {
    api_.cuMemGetAllocationGranularity_fn = [](size_t* bytes, const CUmemAllocationProp*,
                                               CUmemAllocationGranularity_flags) {
      *bytes = kGranularity;
      return CUDA_SUCCESS;
    };
    api_.cuMemAddressReserve_fn = [](CUdeviceptr* address, size_t bytes, size_t, CUdeviceptr,
                                     unsigned long long) {
      *address = current_->next_address_;
      current_->next_address_ += bytes;
      return CUDA_SUCCESS;
    };
    api_.cuMemAddressFree_fn = [](CUdeviceptr, size_t) { return CUDA_SUCCESS; };
    api_.cuMemCreate_fn = [](CUmemGenericAllocationHandle* handle, size_t bytes,
                             const CUmemAllocationProp* properties, unsigned long long) {
      const bool rdma = properties->allocFlags.gpuDirectRDMACapable != 0;
      current_->asked_rdma_.push_back(rdma);
      if (rdma && !current_->takes_rdma_) return CUDA_ERROR_NOT_PERMITTED;
      current_->created_.push_back(bytes);
      *handle = ++current_->next_handle_;
      return CUDA_SUCCESS;
    };
    api_.cuMemHostRegister_fn = [](void* data, size_t bytes, unsigned flags) {
      Count("cuMemHostRegister");
      current_->host_register_flags_ = flags;
      return current_->on_host_register(data, bytes);
    };
    api_.cuMemHostUnregister_fn = [](void*) { return Count("cuMemHostUnregister"); };
    api_.cuMemRelease_fn = [](CUmemGenericAllocationHandle) { return Count("cuMemRelease"); };
    api_.cuMemMap_fn = [](CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, unsigned long long) {
      return Count("cuMemMap");
    };
    api_.cuMemUnmap_fn = [](CUdeviceptr, size_t) { return Count("cuMemUnmap"); };
    api_.cuMemSetAccess_fn = [](CUdeviceptr, size_t, const CUmemAccessDesc*, size_t) {
      return Count("cuMemSetAccess");
    };
  }

  static inline FakeCudaDriver* current_ = nullptr;
  const bool reports_rdma_, takes_rdma_;
  CudaDriverApi api_;
  std::map<std::string, int> calls_;
  std::vector<bool> asked_rdma_;
  std::vector<size_t> created_;
  CUdeviceptr next_address_ = CUdeviceptr{1} << 30;
  CUmemGenericAllocationHandle next_handle_ = 0;
  unsigned host_register_flags_ = 0;
};

}  // namespace somnus
