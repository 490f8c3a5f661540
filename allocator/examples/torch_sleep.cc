// A shared library for torch.cuda.memory.CUDAPluggableAllocator: PyTorch's CUDA memory can sleep.
// torch_sleep.py uses it. UNVERIFIED: this library compiles, and has not run with PyTorch on a GPU.
//
// The build needs neither PyTorch nor CUDA: a stream is a pointer that is passed on.

#include <dlfcn.h>

#include <cstdio>
#include <map>
#include <mutex>

#include "allocator/somnus_allocator.h"

namespace {

std::mutex mutex;
std::map<int, somnus_allocator*>& Allocators() {  // by device; never destroyed: PyTorch frees memory at exit
  static auto* const allocators = new std::map<int, somnus_allocator*>;
  return *allocators;
}

somnus_allocator* Of(int device) {
  const std::lock_guard<std::mutex> lock(mutex);
  somnus_allocator*& allocator = Allocators()[device];
  if (allocator == nullptr) {
    somnus_options options = {};
    options.device = SOMNUS_DEVICE_CUDA;
    options.device_index = device;
    if (somnus_create(&options, &allocator) != SOMNUS_OK)
      std::fprintf(stderr, "somnus: %s\n", somnus_last_error());
  }
  return allocator;
}

// Kernels may still run on memory that is about to be unmapped.
void WaitForStream(void* stream) {
  using Synchronize = int (*)(void*);
  static const auto synchronize = [] {
    void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    return library == nullptr ? nullptr
                              : reinterpret_cast<Synchronize>(dlsym(library, "cuStreamSynchronize"));
  }();
  if (synchronize != nullptr) synchronize(stream);
}

}  // namespace

extern "C" {

// PyTorch's own caching sits above a MemPool; each call here is one region. Null is PyTorch's out of memory.
void* somnus_torch_malloc(ptrdiff_t bytes, int device, void* /*stream*/) {
  void* data = nullptr;
  somnus_allocator* const allocator = Of(device);
  if (allocator == nullptr || somnus_allocate(allocator, nullptr, bytes, &data) != SOMNUS_OK) return nullptr;
  return data;
}

void somnus_torch_free(void* data, ptrdiff_t /*bytes*/, int device, void* stream) {
  WaitForStream(stream);
  somnus_allocator* const allocator = Of(device);
  if (allocator == nullptr || somnus_free(allocator, data) != SOMNUS_OK)
    std::fprintf(stderr, "somnus: %s\n", somnus_last_error());
}

// For torch_sleep.py: the allocator of a device, for calls of somnus_allocator.h. Null where there is none.
somnus_allocator* somnus_torch_allocator(int device) { return Of(device); }

}  // extern "C"
