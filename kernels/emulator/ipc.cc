// Device memory that other processes map: cudaIpc* of runtime.h. The memory is a file in memory, which other
// processes open through the exporter's entries in /proc; the file is freed when the last process with a map
// of it has ended, in whichever way.

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <string>

#include "kernels/emulator/runtime_state.h"

namespace somnus::cuda_emulated {

using emulator::Allocation;
using emulator::MemoryKind;
using emulator::Return;
using emulator::Runtime;

namespace emulator {
namespace {

constexpr size_t kGuardBytes = 64 << 10;  // whole pages: of 64 KiB on some aarch64 kernels

// Maps the file, and an inaccessible piece behind the file.
void* MapFile(int fd, size_t bytes, int kind) {
  void* const all =
      mmap(nullptr, bytes + kGuardBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (all == MAP_FAILED) return nullptr;
  if (mmap(all, bytes, PROT_READ | PROT_WRITE, kind | MAP_FIXED, fd, 0) != MAP_FAILED) return all;
  munmap(all, bytes + kGuardBytes);
  return nullptr;
}

}  // namespace

void* MapShared(size_t bytes, int* fd) {
  *fd = memfd_create("emulated device memory", MFD_CLOEXEC);
  if (*fd < 0) return nullptr;
  void* const data =
      ftruncate(*fd, static_cast<off_t>(bytes)) == 0 ? MapFile(*fd, bytes, MAP_SHARED) : nullptr;
  if (data == nullptr) close(*fd);
  return data;
}

void UnmapShared(void* data, size_t bytes, int fd) {
  munmap(data, bytes + kGuardBytes);
  if (fd >= 0) close(fd);
}

}  // namespace emulator

namespace {

// The contents of a handle.
struct Exported {
  uint64_t magic;
  uintptr_t base;  // in the exporter
  uint64_t bytes;
  uint64_t inode;  // of the file, to detect a descriptor that now belongs to a different file
  int32_t pid;
  int32_t fd;  // -1: for this process alone
};
constexpr uint64_t kMagic = 0x736f6d6e75736970;

// The exporter's file, or -1 where the file is gone.
int OpenFile(const Exported& exported) {
  if (exported.fd < 0) return -1;
  const std::string path = "/proc/" + std::to_string(exported.pid) + "/fd/" + std::to_string(exported.fd);
  const int fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) return -1;
  struct stat status;
  if (fstat(fd, &status) == 0 && status.st_ino == exported.inode &&
      static_cast<uint64_t>(status.st_size) == exported.bytes) {
    return fd;
  }
  close(fd);
  return -1;
}

}  // namespace

cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t* handle, void* pointer) {
  Runtime& runtime = Runtime::Get();
  const Runtime::Lock lock = runtime.Acquire();
  const auto it = runtime.AllocationOf(pointer);
  if (handle == nullptr || it == runtime.memory().end() || it->second.kind != MemoryKind::kDevice) {
    return Return(cudaErrorInvalidValue);
  }
  struct stat status = {};
  if (it->second.fd >= 0 && fstat(it->second.fd, &status) != 0) return Return(cudaErrorUnknown);
  const Exported exported{kMagic, it->first, it->second.bytes, status.st_ino, getpid(), it->second.fd};
  *handle = {};
  static_assert(sizeof exported <= sizeof handle->reserved);
  std::memcpy(handle->reserved, &exported, sizeof exported);
  return cudaSuccess;
}

cudaError_t cudaIpcOpenMemHandle(void** pointer, cudaIpcMemHandle_t handle, unsigned) {
  Exported exported;
  std::memcpy(&exported, handle.reserved, sizeof exported);
  Runtime& runtime = Runtime::Get();
  const Runtime::Lock lock = runtime.Acquire();
  if (pointer == nullptr || exported.magic != kMagic) return Return(cudaErrorInvalidResourceHandle);
  if (exported.pid == getpid()) return Return(cudaErrorDeviceUninitialized);
  const auto again = std::find_if(runtime.memory().begin(), runtime.memory().end(), [&](const auto& entry) {
    return entry.second.kind == MemoryKind::kImported && entry.second.inode == exported.inode;
  });
  if (again != runtime.memory().end()) {
    ++again->second.opened;
    *pointer = reinterpret_cast<void*>(again->first);
    return cudaSuccess;
  }
  const int fd = OpenFile(exported);
  if (fd < 0) return Return(cudaErrorInvalidResourceHandle);
  *pointer = runtime.options.broken_peer_memory
                 ? emulator::MapFile(-1, exported.bytes, MAP_PRIVATE | MAP_ANONYMOUS)
                 : emulator::MapFile(fd, exported.bytes, MAP_SHARED);
  close(fd);
  if (*pointer == nullptr) return Return(cudaErrorMemoryAllocation);
  Allocation imported{exported.bytes, MemoryKind::kImported, emulator::CurrentDevice()};
  imported.inode = exported.inode;
  imported.opened = 1;
  runtime.memory()[reinterpret_cast<uintptr_t>(*pointer)] = imported;
  return cudaSuccess;
}

cudaError_t cudaIpcCloseMemHandle(void* pointer) {
  Runtime& runtime = Runtime::Get();
  Runtime::Lock lock = runtime.Acquire();
  const auto it = runtime.memory().find(reinterpret_cast<uintptr_t>(pointer));
  if (it == runtime.memory().end()) return Return(cudaErrorInvalidValue);
  if (it->second.kind != MemoryKind::kImported || --it->second.opened > 0) return cudaSuccess;
  runtime.RunAll(lock);  // queued ops may use the memory
  const size_t bytes = it->second.bytes;
  runtime.memory().erase(it);
  emulator::UnmapShared(pointer, bytes, -1);
  return cudaSuccess;
}

}  // namespace somnus::cuda_emulated
