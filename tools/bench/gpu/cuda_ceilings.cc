#include "tools/bench/gpu/cuda_ceilings.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace somnus {
namespace {

constexpr size_t kBytes = size_t{1} << 30;
constexpr int kSamples = 9;

absl::Status Check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(what, ": ", cudaGetErrorString(error)));
}

// Returns the median rate of several copies, in GB/s of `counted` bytes.
absl::StatusOr<double> CopyRate(void* to, const void* from, double counted) {
  cudaEvent_t begin, end;
  RETURN_IF_ERROR(Check(cudaEventCreate(&begin), "cudaEventCreate"));
  RETURN_IF_ERROR(Check(cudaEventCreate(&end), "cudaEventCreate"));
  absl::Cleanup destroy = [&] {
    cudaEventDestroy(begin);
    cudaEventDestroy(end);
  };
  std::vector<double> rates;
  for (int i = 0; i <= kSamples; ++i) {
    cudaEventRecord(begin);
    RETURN_IF_ERROR(Check(cudaMemcpyAsync(to, from, kBytes, cudaMemcpyDefault), "cudaMemcpyAsync"));
    cudaEventRecord(end);
    RETURN_IF_ERROR(Check(cudaEventSynchronize(end), "cudaEventSynchronize"));
    float ms = 0;
    cudaEventElapsedTime(&ms, begin, end);
    if (i > 0) rates.push_back(counted / (ms * 1e-3) * 1e-9);  // the first run warms up
  }
  std::nth_element(rates.begin(), rates.begin() + kSamples / 2, rates.end());
  return rates[kSamples / 2];
}

}  // namespace

absl::StatusOr<GpuCeilings> MeasureCeilings(int device_index) {
  RETURN_IF_ERROR(Check(cudaSetDevice(device_index), "cudaSetDevice"));
  void *a = nullptr, *b = nullptr, *host = nullptr;
  absl::Cleanup release = [&] {
    cudaFree(a);
    cudaFree(b);
    cudaFreeHost(host);
  };
  RETURN_IF_ERROR(Check(cudaMalloc(&a, kBytes), "cudaMalloc"));
  RETURN_IF_ERROR(Check(cudaMalloc(&b, kBytes), "cudaMalloc"));
  RETURN_IF_ERROR(Check(cudaMallocHost(&host, kBytes), "cudaMallocHost"));
  RETURN_IF_ERROR(Check(cudaMemset(a, 1, kBytes), "cudaMemset"));
  GpuCeilings ceilings;
  ASSIGN_OR_RETURN(ceilings.copy_gbps, CopyRate(b, a, 2.0 * kBytes));
  ASSIGN_OR_RETURN(ceilings.host_to_device_gbps, CopyRate(a, host, kBytes));
  ASSIGN_OR_RETURN(ceilings.device_to_host_gbps, CopyRate(host, a, kBytes));
  return ceilings;
}

}  // namespace somnus
