#pragma once
// How kernels are started and find their shared memory: the same text under nvcc and in the emulator.

#include <cstdint>
#include <tuple>
#include <type_traits>
#include <utility>

#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda_api.h"

namespace somnus::SOMNUS_CUDA_NAMESPACE {

struct LaunchConfig {
  dim3 grid;
  dim3 block;
  int64_t shared_bytes = 0;  // dynamic; more than 48 KiB is opted in on the first launch
  // Programmatic dependent launch: the kernel may start while the previous kernel still runs, from that
  // kernel's GridDependencyLaunch on, and must call GridDependencyWait before touching memory that the
  // previous kernel writes. SOMNUS_CUDA_DISABLE can turn dependent launch off, and chips before compute
  // capability 9.0 do without.
  bool overlaps_previous = false;
};

// Queues the kernel on `stream` with pointers to its arguments. Checks nothing.
cudaError_t LaunchOnStream(const LaunchConfig& config, cudaStream_t stream, const void* kernel, void** args);

// Queues kernel<<<grid, block, shared_bytes, stream>>>(args...); arguments are converted to the kernel's
// parameters, which are passed by value. Errors go to device.Record. A grid without blocks is no work, and no
// error.
template <typename... Params, typename... Args>
void Launch(CudaDevice& device, cudaStream_t stream, LaunchConfig config, void (*kernel)(Params...),
            Args&&... args) {
  static_assert((!std::is_reference_v<Params> && ...), "a kernel's parameters are copied");
  static_assert(sizeof...(Params) == sizeof...(Args));
  if (config.grid.x == 0 || config.grid.y == 0 || config.grid.z == 0) return;
  config.overlaps_previous = config.overlaps_previous && device.switches().programmatic_launch;
  const void* const function = reinterpret_cast<const void*>(kernel);
  if (!device.OptIntoShared(function, config.shared_bytes)) return;
  std::tuple<std::remove_cv_t<Params>...> params(std::forward<Args>(args)...);
#ifdef SOMNUS_CUDA_EMULATOR
  const cudaError_t error = EmulatedLaunch({.grid = config.grid,
                                            .block = config.block,
                                            .shared_bytes = config.shared_bytes,
                                            .overlaps_previous = config.overlaps_previous,
                                            .function = function,
                                            .body = [kernel, params] { std::apply(kernel, params); }},
                                           stream);
#else
  const cudaError_t error = std::apply(
      [&](auto&... param) {
        void* pointers[] = {const_cast<void*>(static_cast<const void*>(&param))..., nullptr};
        return LaunchOnStream(config, stream, function, pointers);
      },
      params);
#endif
  device.Record(error, "launching a kernel");
}

// Queues the kernel on the device's own stream.
template <typename... Params, typename... Args>
void Launch(CudaDevice& device, const LaunchConfig& config, void (*kernel)(Params...), Args&&... args) {
  Launch(device, device.stream(), config, kernel, std::forward<Args>(args)...);
}

// All shared memory of a kernel is one struct in dynamic shared memory (no static __shared__): the launch
// gives its size, and the emulator poisons the memory and watches its bounds. Aligned to 128. Memory of the
// launch beyond sizeof(T) follows the struct.
template <typename T>
__device__ __forceinline__ T& SharedStorage() {
  static_assert(std::is_trivially_destructible_v<T> && alignof(T) <= 128);
#ifdef SOMNUS_CUDA_EMULATOR
  return *static_cast<T*>(emulator::SharedMemoryOf(sizeof(T)));
#else
  extern __shared__ __align__(128) unsigned char somnus_shared_memory[];
  return *reinterpret_cast<T*>(somnus_shared_memory);
#endif
}

}  // namespace somnus::SOMNUS_CUDA_NAMESPACE
