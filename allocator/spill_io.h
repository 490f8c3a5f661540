#pragma once
// Reads and writes of a file, several at a time. For buffers, sizes and offsets that are multiples of
// kSpillAlign: the file may be open with O_DIRECT.
//
// Not thread safe: one thread begins operations and waits for them.

#include <cstdint>
#include <memory>

namespace somnus {

constexpr int64_t kSpillAlign = 4096;

class SpillIo {
 public:
  struct Completion {
    int slot;
    int64_t result;  // bytes moved, possibly fewer than asked for, or -errno
  };

  // Waits for the operations under way.
  virtual ~SpillIo() = default;

  // Begins an operation in a free slot. The buffer must stay until the slot has completed.
  virtual void Write(int slot, const char* data, int64_t bytes, int64_t offset) = 0;
  virtual void Read(int slot, char* data, int64_t bytes, int64_t offset) = 0;
  // Waits for any operation; at least one must be under way.
  virtual Completion Wait() = 0;
};

// With io_uring. Null where the build, the kernel or a sandbox has none. Slots are 0..depth-1.
std::unique_ptr<SpillIo> MakeUringSpillIo(int fd, int depth);
// With `depth` threads that call pread and pwrite.
std::unique_ptr<SpillIo> MakeThreadedSpillIo(int fd, int depth);
// With io_uring where available, otherwise with threads.
std::unique_ptr<SpillIo> MakeSpillIo(int fd, int depth);

}  // namespace somnus
