#pragma once
// Gives memory that the process has freed back to the kernel. glibc's malloc keeps freed pages for the arena
// of the thread that allocated them, however much a single input took: JSON takes up to sixty times the bytes
// of its text while it is worked on.

#include <cstddef>
#include <cstdint>

namespace somnus {

// From so many bytes on, what the work on an input has freed is worth returning.
inline constexpr size_t kLargeInputBytes = 256 << 10;

// Has malloc return blocks above 1 MiB, and the free end of an arena above 1 MiB, as soon as they are freed.
// By default glibc keeps as much as twice the largest block that was ever freed, up to 64 MiB an arena. For
// main(), before there are other threads.
void ReturnLargeBlocks();

// Returns the free pages of all arenas, but for the free ends of arenas that are not the calling thread's. To
// be called where a large input has been worked on, by the thread that has freed the memory. Takes 0.1 to 0.3
// ms, and 0.1 ms for each MiB that is returned (Zen 3), during which threads of the same arena wait for
// memory.
void ReturnFreedMemory();

// Returns what work on an input of so many bytes has freed, if the input was large. To be declared before all
// that the work allocates.
class InputMemory {
 public:
  explicit InputMemory(size_t input_bytes) : is_large_(input_bytes > kLargeInputBytes) {}
  ~InputMemory() {
    if (is_large_) ReturnFreedMemory();
  }
  InputMemory(const InputMemory&) = delete;
  InputMemory& operator=(const InputMemory&) = delete;

 private:
  const bool is_large_;
};

}  // namespace somnus
