// Allocations and copies of runtime.h.

#include <cstdlib>
#include <cstring>
#include <iterator>
#include <utility>
#include <vector>

#include "kernels/emulator/grid.h"
#include "kernels/emulator/host_calls.h"
#include "kernels/emulator/options.h"
#include "kernels/emulator/runtime_state.h"

namespace somnus::cuda_emulated {

using emulator::Allocation;
using emulator::MemoryKind;
using emulator::Op;
using emulator::Return;
using emulator::Runtime;
using emulator::Stream;

namespace emulator {

std::map<uintptr_t, Allocation>::iterator Runtime::AllocationOf(const void* p) {
  const uintptr_t address = reinterpret_cast<uintptr_t>(p);
  auto it = memory_.upper_bound(address);
  if (it == memory_.begin()) return memory_.end();
  --it;
  return address < it->first + it->second.bytes ? it : memory_.end();
}

void AdoptDeviceMemory(void* data, int64_t bytes) {
  const Runtime::Lock lock = Runtime::Get().Acquire();
  Runtime::Get().memory()[reinterpret_cast<uintptr_t>(data)] = {static_cast<size_t>(bytes),
                                                                MemoryKind::kAdopted, CurrentDevice()};
}

void ForgetDeviceMemory(void* data, int64_t bytes) {
  Runtime::Lock lock = Runtime::Get().Acquire();
  Runtime::Get().RunAll(lock);
  std::map<uintptr_t, Allocation>& memory = Runtime::Get().memory();
  const uintptr_t begin = reinterpret_cast<uintptr_t>(data), end = begin + bytes;
  auto it = Runtime::Get().AllocationOf(data);
  if (it == memory.end()) it = memory.lower_bound(begin);
  while (it != memory.end() && it->first < end) {
    const uintptr_t first = it->first, last = first + it->second.bytes;
    const Allocation whole = it->second;
    it = memory.erase(it);
    // Memory beside the range stays.
    for (const auto& [from, to] : {std::pair{first, begin}, {end, last}}) {
      if (from >= to) continue;
      memory[from] = whole;
      memory[from].bytes = to - from;
    }
  }
}

HostCalls& CallsOfThisThread() {
  thread_local HostCalls calls;
  return calls;
}

bool TakeDeviceMemory(int64_t bytes) {
  const Runtime::Lock lock = Runtime::Get().Acquire();
  return Runtime::Get().TakeBytes(bytes);
}

void ReturnDeviceMemory(int64_t bytes) {
  const Runtime::Lock lock = Runtime::Get().Acquire();
  Runtime::Get().device_bytes_used -= bytes;
}

}  // namespace emulator

namespace {

// The properties of an end of a copy.
struct End {
  bool host = false;    // may be the host's
  bool device = false;  // may be the device's
  bool pageable = false;
  bool inside = true;  // the range lies in one allocation, or in mappings side by side
};

// A range that begins in the allocation: for copies, a driver's mappings that lie side by side are a single
// range.
bool IsInside(Runtime& runtime, std::map<uintptr_t, Allocation>::iterator it, uintptr_t end) {
  while (end > it->first + it->second.bytes) {
    const auto next = std::next(it);
    if (next == runtime.memory().end() || next->first != it->first + it->second.bytes ||
        it->second.kind != MemoryKind::kAdopted || next->second.kind != MemoryKind::kAdopted)
      return false;
    it = next;
  }
  return true;
}

End Inspect(Runtime& runtime, const void* p, size_t bytes) {
  const auto it = runtime.AllocationOf(p);
  if (it == runtime.memory().end()) return {.host = true, .pageable = true};
  const MemoryKind kind = it->second.kind;
  End end;
  end.host = kind != MemoryKind::kDevice && kind != MemoryKind::kAdopted && kind != MemoryKind::kImported;
  end.device = true;  // Pinned memory is mapped: a device pointer, too.
  end.inside = IsInside(runtime, it, reinterpret_cast<uintptr_t>(p) + bytes);
  return end;
}

bool Fits(cudaMemcpyKind kind, const End& dst, const End& src) {
  switch (kind) {
    case cudaMemcpyHostToHost:
      return dst.host && src.host;
    case cudaMemcpyHostToDevice:
      return dst.device && src.host;
    case cudaMemcpyDeviceToHost:
      return dst.host && src.device;
    case cudaMemcpyDeviceToDevice:
      return dst.device && src.device;
    case cudaMemcpyDefault:
      return true;
  }
  return false;
}

cudaError_t Allocate(void** pointer, size_t bytes, MemoryKind kind) {
  if (pointer == nullptr) return Return(cudaErrorInvalidValue);
  *pointer = nullptr;
  ++emulator::CallsOfThisThread().waits;
  Runtime& runtime = Runtime::Get();
  const Runtime::Lock lock = runtime.Acquire();
  if (const cudaError_t error = runtime.CheckNotCapturing(); error != cudaSuccess) return Return(error);
  if (bytes == 0) return cudaSuccess;
  const int64_t counted = kind == MemoryKind::kPinned ? 0 : static_cast<int64_t>(bytes);
  if (!runtime.TakeBytes(counted)) return Return(cudaErrorMemoryAllocation);
  Allocation allocation{bytes, kind, emulator::CurrentDevice()};
  if (kind == MemoryKind::kDevice && bytes % emulator::kIpcPageBytes == 0) {
    *pointer = emulator::MapShared(bytes, &allocation.fd);
  } else if (posix_memalign(pointer, 256, bytes) != 0) {
    *pointer = nullptr;
  }
  if (*pointer == nullptr) {
    runtime.device_bytes_used -= counted;
    return Return(cudaErrorMemoryAllocation);
  }
  std::memset(*pointer, 0xff, bytes);  // NaN in every type
  runtime.memory()[reinterpret_cast<uintptr_t>(*pointer)] = allocation;
  return cudaSuccess;
}

cudaError_t Free(void* pointer, bool pinned) {
  if (pointer == nullptr) return cudaSuccess;
  ++emulator::CallsOfThisThread().waits;
  Runtime& runtime = Runtime::Get();
  Runtime::Lock lock = runtime.Acquire();
  if (const cudaError_t error = runtime.CheckNotCapturing(); error != cudaSuccess) return Return(error);
  runtime.RunAll(lock);
  const auto it = runtime.memory().find(reinterpret_cast<uintptr_t>(pointer));
  const MemoryKind wanted = pinned ? MemoryKind::kPinned : MemoryKind::kDevice;
  const bool known = it != runtime.memory().end() && it->second.kind == wanted;
  if (!known) return Return(cudaErrorInvalidValue);
  if (!pinned) runtime.device_bytes_used -= static_cast<int64_t>(it->second.bytes);
  const Allocation allocation = it->second;
  runtime.memory().erase(it);
  emulator::FindRacesAgain(pointer, static_cast<int64_t>(allocation.bytes));
  if (allocation.fd >= 0) {
    emulator::UnmapShared(pointer, allocation.bytes, allocation.fd);
  } else {
    std::free(pointer);
  }
  return cudaSuccess;
}

// `wait`: until the copy is done, for any kinds of memory.
cudaError_t Copy(void* dst, const void* src, size_t bytes, cudaMemcpyKind kind, cudaStream_t handle,
                 bool wait) {
  Runtime& runtime = Runtime::Get();
  Runtime::Lock lock = runtime.Acquire();
  const std::shared_ptr<Stream> stream = runtime.Find(handle);
  if (stream == nullptr) return Return(cudaErrorInvalidResourceHandle);
  if (wait) {
    if (const cudaError_t error = runtime.CheckNotCapturing(); error != cudaSuccess) return Return(error);
  }
  if (bytes == 0) return cudaSuccess;
  if (dst == nullptr || src == nullptr) return Return(cudaErrorInvalidValue);
  const End to = Inspect(runtime, dst, bytes);
  const End from = Inspect(runtime, src, bytes);
  if (!Fits(kind, to, from) || !to.inside || !from.inside) return Return(cudaErrorInvalidValue);
  emulator::HostCalls& calls = emulator::CallsOfThisThread();
  calls.waits += wait || to.pageable || from.pageable;
  calls.copies_to_device += kind == cudaMemcpyHostToDevice;
  calls.copies_to_host += kind == cudaMemcpyDeviceToHost;
  Op op;
  if (from.pageable && !wait && stream->capture == nullptr) {
    // Pageable memory is read by the call: through a staging buffer.
    auto staged = std::make_shared<std::vector<char>>(bytes);
    std::memcpy(staged->data(), src, bytes);
    op.run = [=] { std::memcpy(dst, staged->data(), bytes); };
  } else {
    op.run = [=] { std::memmove(dst, src, bytes); };
  }
  if (const cudaError_t error = runtime.Enqueue(lock, stream, std::move(op)); error != cudaSuccess)
    return Return(error);
  if (wait || (to.pageable && stream->capture == nullptr)) runtime.RunUpTo(lock, runtime.TailOf(stream));
  return cudaSuccess;
}

cudaError_t Set(void* pointer, int value, size_t bytes, cudaStream_t handle) {
  Runtime& runtime = Runtime::Get();
  Runtime::Lock lock = runtime.Acquire();
  const std::shared_ptr<Stream> stream = runtime.Find(handle);
  if (stream == nullptr) return Return(cudaErrorInvalidResourceHandle);
  if (bytes == 0) return cudaSuccess;
  const End end = Inspect(runtime, pointer, bytes);
  if (!end.device || !end.inside) return Return(cudaErrorInvalidValue);
  Op op;
  op.run = [=] { std::memset(pointer, value, bytes); };
  return Return(runtime.Enqueue(lock, stream, std::move(op)));
}

}  // namespace

cudaError_t cudaMallocBytes(void** pointer, size_t bytes) {
  return Allocate(pointer, bytes, MemoryKind::kDevice);
}
cudaError_t cudaHostAllocBytes(void** pointer, size_t bytes) {
  return Allocate(pointer, bytes, MemoryKind::kPinned);
}
cudaError_t cudaFree(void* pointer) { return Free(pointer, false); }
cudaError_t cudaFreeHost(void* pointer) { return Free(pointer, true); }

cudaError_t cudaHostGetDevicePointer(void** device, void* host, unsigned) {
  Runtime& runtime = Runtime::Get();
  const Runtime::Lock lock = runtime.Acquire();
  if (device == nullptr || runtime.AllocationOf(host) == runtime.memory().end())
    return Return(cudaErrorInvalidValue);
  *device = host;
  return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* pointer) {
  if (attributes == nullptr) return Return(cudaErrorInvalidValue);
  Runtime& runtime = Runtime::Get();
  const Runtime::Lock lock = runtime.Acquire();
  *attributes = {cudaMemoryTypeUnregistered, -1, nullptr, const_cast<void*>(pointer)};
  const auto it = runtime.AllocationOf(pointer);
  if (it == runtime.memory().end()) return cudaSuccess;
  attributes->device = it->second.device;
  attributes->devicePointer = const_cast<void*>(pointer);
  switch (it->second.kind) {
    case MemoryKind::kDevice:
    case MemoryKind::kAdopted:
    case MemoryKind::kImported:
      attributes->type = cudaMemoryTypeDevice;
      attributes->hostPointer = nullptr;
      break;
    case MemoryKind::kPinned:
      attributes->type = cudaMemoryTypeHost;
      break;
  }
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* dst, const void* src, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  return Copy(dst, src, bytes, kind, stream, false);
}
cudaError_t cudaMemcpy(void* dst, const void* src, size_t bytes, cudaMemcpyKind kind) {
  return Copy(dst, src, bytes, kind, nullptr, true);
}
cudaError_t cudaMemsetAsync(void* pointer, int value, size_t bytes, cudaStream_t stream) {
  return Set(pointer, value, bytes, stream);
}
cudaError_t cudaMemset(void* pointer, int value, size_t bytes) { return Set(pointer, value, bytes, nullptr); }

}  // namespace somnus::cuda_emulated
