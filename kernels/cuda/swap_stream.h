#pragma once
// The stream of swaps: blocks move between the device and the host while ops run on the device's stream.

#include "kernels/cuda_api.h"

namespace somnus::SOMNUS_CUDA_NAMESPACE {

class CudaDevice;

// A part of a CudaDevice, which keeps the errors (Record). The first swap makes the stream. Used by the
// device's thread.
class SwapStream {
 public:
  explicit SwapStream(CudaDevice* device) : device_(*device) {}
  ~SwapStream();
  SwapStream(const SwapStream&) = delete;
  SwapStream& operator=(const SwapStream&) = delete;

  // The stream goes on after everything that is queued so far; null after an error. Not within a capture.
  cudaStream_t Begin();
  // Marks the point that Await waits for.
  void End();
  // Ops that are queued from now on run after the swaps that have begun.
  void Await();
  // Waits until the swaps are done.
  void Synchronize();

 private:
  CudaDevice& device_;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t may_begin_ = nullptr, done_ = nullptr;
  bool awaited_ = true;  // otherwise ops that are queued now may overtake swaps
};

}  // namespace somnus::SOMNUS_CUDA_NAMESPACE
