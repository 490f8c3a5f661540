#include "kernels/cuda/swap_stream.h"

#include <utility>

#include "kernels/cuda/cuda_device.h"

namespace somnus::SOMNUS_CUDA_NAMESPACE {

SwapStream::~SwapStream() {
  if (stream_ == nullptr) return;
  cudaStreamSynchronize(stream_);
  cudaStreamDestroy(stream_);
  if (may_begin_ != nullptr) cudaEventDestroy(may_begin_);
  if (done_ != nullptr) cudaEventDestroy(done_);
}

cudaStream_t SwapStream::Begin() {
  cudaError_t error = cudaSuccess;
  if (stream_ == nullptr) error = cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking);
  for (cudaEvent_t* event : {&may_begin_, &done_}) {
    if (error == cudaSuccess && *event == nullptr)
      error = cudaEventCreateWithFlags(event, cudaEventDisableTiming);
  }
  if (error == cudaSuccess) error = cudaEventRecord(may_begin_, device_.stream());
  if (error == cudaSuccess) error = cudaStreamWaitEvent(stream_, may_begin_, 0);
  device_.Record(error, "beginning a swap");
  return error == cudaSuccess ? stream_ : nullptr;
}

void SwapStream::End() {
  device_.Record(cudaEventRecord(done_, stream_), "ending a swap");
  awaited_ = false;
}

void SwapStream::Await() {
  if (std::exchange(awaited_, true)) return;
  device_.Record(cudaStreamWaitEvent(device_.stream(), done_, 0), "waiting for a swap");
}

void SwapStream::Synchronize() {
  if (stream_ != nullptr) device_.Record(cudaStreamSynchronize(stream_), "waiting for swaps");
}

}  // namespace somnus::SOMNUS_CUDA_NAMESPACE
