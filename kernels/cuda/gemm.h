#pragma once
// A matrix product by the vendor's library: cuBLASLt on the device (gemm_cublaslt.h), plain loops in the
// emulator. Used by the device's own thread.

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/gemm_plan.h"
#include "kernels/ops.h"

namespace somnus::SOMNUS_CUDA_NAMESPACE {

// y[rows, n] = x[rows, k] * w[n, k]^T + bias, sums in f32 (true f32 for f32 operands: no TF32), rounded once.
struct GemmCall {
  TensorView x;                // act
  LinearWeight w;              // act; rows are contiguous
  const void* bias = nullptr;  // [n] of y's type, or nullptr; 16-byte aligned
  TensorView y;                // act or f32
  char* workspace = nullptr;   // device memory, 256-byte aligned
  int64_t workspace_bytes = 0;
};

inline GemmKey KeyOf(const GemmCall& call) {
  return {.rows = call.x.rows,
          .n = call.w.n,
          .k = call.w.k,
          .x_stride = call.x.stride,
          .y_stride = call.y.stride,
          .act = call.w.dtype,
          .out = call.y.dtype,
          .bias = call.bias != nullptr,
          .x_alignment = AlignmentOf(call.x.data),
          .w_alignment = AlignmentOf(call.w.data),
          .y_alignment = AlignmentOf(call.y.data)};
}

class Gemm {
 public:
  // Unavailable names the library or the entry point that is missing. The device must be current.
  static absl::StatusOr<std::unique_ptr<Gemm>> Create(const ChipLimits& chip);
  virtual ~Gemm() = default;

  // The right `workspace_bytes` of a call; with less, a call may be refused.
  virtual int64_t WorkspaceBytes() const = 0;

  // Queues the product on the device's stream. Returns Unimplemented, and queues nothing, when the library
  // has no algorithm for the product (because of an odd alignment, say). The first call of a shape takes some
  // 100 us of host time (an estimate), later calls a few; calls may be captured in a graph.
  virtual absl::Status Run(CudaDevice& device, const GemmCall& call) = 0;

  // Measures the library's algorithms for the shape that all `calls` share and keeps the fastest for the
  // shape and its neighbours (see BucketRows). A shape that was measured before is not measured again.
  // Several calls with different weights keep the measurement out of the L2 cache. Writes to every y; waits
  // for the device; not during a capture.
  virtual absl::Status Tune(CudaDevice& device, absl::Span<const GemmCall> calls) = 0;

  // How algorithms were chosen so far, each for a shape and its neighbours.
  struct Stats {
    int64_t measured = 0;
    int64_t unmeasured = 0;  // the library's first proposal
  };
  virtual Stats stats() const = 0;
};

}  // namespace somnus::SOMNUS_CUDA_NAMESPACE
