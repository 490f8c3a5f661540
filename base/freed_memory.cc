#include "base/freed_memory.h"

#include <malloc.h>

#include <cstdlib>

namespace somnus {
namespace {

constexpr int kLargeBlockBytes = 1 << 20;
// glibc looks at an arena's free end only where a block of at least 64 KiB is freed.
constexpr size_t kLookBytes = 128 << 10;

}  // namespace

void ReturnLargeBlocks() {
  mallopt(M_MMAP_THRESHOLD, kLargeBlockBytes);
  mallopt(M_TRIM_THRESHOLD, kLargeBlockBytes);
}

void ReturnFreedMemory() {
  malloc_trim(0);
  // malloc_trim leaves the end of every arena but the main one. Volatile, so that the compiler does not leave
  // the pair out.
  void* volatile block = std::malloc(kLookBytes);
  std::free(block);
}

}  // namespace somnus
