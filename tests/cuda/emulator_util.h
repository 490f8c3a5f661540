#pragma once
// The common code of tests of the emulator: a lambda as a kernel, and a schedule for a scope.

#include <cstdint>
#include <functional>
#include <utility>

#include "kernels/cuda/ptx.h"
#include "kernels/emulator/options.h"
#include "kernels/emulator/runtime.h"

namespace somnus::cuda_emulated {

// The name of every test kernel in messages, and the single function for which shared memory is opted in.
inline void TestKernel() {}

// Queues `body` for every thread. `body` may refer to objects that live until the stream is synchronized.
inline cudaError_t Queue(dim3 grid, dim3 block, int64_t shared_bytes, std::function<void()> body,
                         cudaStream_t stream = nullptr, bool overlaps_previous = false) {
  return EmulatedLaunch({.grid = grid,
                         .block = block,
                         .shared_bytes = shared_bytes,
                         .overlaps_previous = overlaps_previous,
                         .function = reinterpret_cast<const void*>(&TestKernel),
                         .body = std::move(body)},
                        stream);
}

// Queues and runs `body`.
inline cudaError_t RunKernel(dim3 grid, dim3 block, int64_t shared_bytes, std::function<void()> body) {
  const cudaError_t error = Queue(grid, block, shared_bytes, std::move(body));
  return error == cudaSuccess ? cudaDeviceSynchronize() : error;
}

// Changed options for the lifetime of the object.
class WithOptions {
 public:
  explicit WithOptions(const std::function<void(emulator::Options&)>& change) : old_(emulator::GetOptions()) {
    emulator::Options options = old_;
    change(options);
    emulator::SetOptions(options);
  }
  ~WithOptions() { emulator::SetOptions(old_); }

 private:
  const emulator::Options old_;
};

inline WithOptions WithSeed(uint64_t seed) {
  return WithOptions([&](emulator::Options& options) { options.seed = seed; });
}

template <typename T>
T* Shared() {
  return static_cast<T*>(emulator::SharedMemoryOf(sizeof(T)));
}

}  // namespace somnus::cuda_emulated
