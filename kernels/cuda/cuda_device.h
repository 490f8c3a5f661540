#pragma once
// A CUDA device: a stream on which ops are queued, a stream for swaps, the chip's numbers that plans need,
// and lent scratch. Owns the streams. Used by one thread at a time, except where a method says otherwise.

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/debug_switches.h"
#include "kernels/cuda/swap_stream.h"
#include "kernels/cuda_api.h"
#include "kernels/device.h"
#include "kernels/op_table.h"

namespace somnus::SOMNUS_CUDA_NAMESPACE {

class Gemm;
class WeightUploader;

// The input of plans; plain numbers, so that plans can be tested for absent chips.
struct ChipLimits {
  int compute_capability = 0;    // 90 for 9.0
  int num_sms = 0;               // streaming multiprocessors
  int64_t max_shared_bytes = 0;  // of one block, opted in
  int64_t shared_bytes_per_sm = 0;
  int64_t l2_bytes = 0;
};

// CheckCudaDevice of check.h.
absl::Status CheckDevice(int index);

class CudaDevice final : public Device {
 public:
  // The errors of CheckDevice; Unavailable for a chip that this program has no code for; InvalidArgument for
  // a word in SOMNUS_CUDA_DISABLE that is no switch.
  static absl::StatusOr<std::unique_ptr<CudaDevice>> Create(int index);
  ~CudaDevice() override;
  CudaDevice(const CudaDevice&) = delete;
  CudaDevice& operator=(const CudaDevice&) = delete;

  DeviceKind kind() const override { return DeviceKind::kCuda; }
  const OpTable& ops() const override;
  std::string Describe() const override;
  void SetWorkspace(void* data, int64_t bytes) override;
  void SetBatchInvariant(bool batch_invariant) override { batch_invariant_ = batch_invariant; }
  void BeginStep() override {}
  void EndStep() override {}
  bool asynchronous() const override { return true; }
  absl::StatusOr<void*> AllocatePinned(int64_t bytes) override;
  void FreePinned(void* data) override;
  // Thread safe; Synchronize() waits for the uploader, too.
  DeviceUploader* uploader() override;
  absl::StatusOr<std::unique_ptr<DeviceEvent>> CreateEvent() override;
  absl::Status BeginCapture() override;
  absl::StatusOr<std::unique_ptr<DeviceGraph>> EndCapture() override;
  void CopyToDevice(void* device, const void* host, int64_t bytes) override;
  void CopyToHost(void* host, const void* device, int64_t bytes) override;
  absl::Status CopyFromProcess(absl::string_view handle, int64_t offset, int64_t bytes, void* host) override;
  absl::Status Synchronize() override;
  HostCalls CallsOfThisThread() const override;
  void AwaitSwaps() override { swaps_.Await(); }

  int index() const { return index_; }
  cudaStream_t stream() const { return stream_; }
  bool capturing() const { return capturing_; }
  bool batch_invariant() const { return batch_invariant_; }
  const DebugSwitches& switches() const { return switches_; }
  const ChipLimits& chip() const { return chip_; }
  // Aligned to 256 bytes. Each op uses the workspace from the start; no contents outlive the op.
  char* workspace() const { return workspace_; }
  int64_t workspace_bytes() const { return workspace_bytes_; }
  // Null when there is no library for matrix products; our own kernels then compute all of them.
  Gemm* gemm() const { return gemm_.get(); }
  // The same object as uploader(), which also takes rows of f32.
  WeightUploader& weight_uploader() const { return *uploader_; }
  SwapStream& swaps() { return swaps_; }

  // Keeps the first error, with the name of the failed operation; Synchronize returns the error.
  void Record(cudaError_t error, const char* what);
  void Record(absl::Status status);

  // Lets `kernel` have that much dynamic shared memory; calls the runtime once for each kernel. Returns
  // false, and records the error, when the chip has less.
  bool OptIntoShared(const void* kernel, int64_t bytes);

 private:
  CudaDevice();
  absl::Status TakeError();

  int index_ = 0;
  cudaStream_t stream_ = nullptr;
  bool capturing_ = false;
  bool batch_invariant_ = false;
  DebugSwitches switches_;
  ChipLimits chip_;
  std::string name_;
  char* workspace_ = nullptr;
  int64_t workspace_bytes_ = 0;
  std::unique_ptr<Gemm> gemm_;
  std::unique_ptr<WeightUploader> uploader_;
  absl::flat_hash_set<const void*> opted_;  // kernels that may have all shared memory
  std::mutex error_mu_;
  absl::Status error_;  // the first error since TakeError
  SwapStream swaps_;
};

inline CudaDevice& AsCuda(Device& device) { return static_cast<CudaDevice&>(device); }
inline const CudaDevice& AsCuda(const Device& device) { return static_cast<const CudaDevice&>(device); }

}  // namespace somnus::SOMNUS_CUDA_NAMESPACE
