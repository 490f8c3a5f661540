#include "allocator/host_pages.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <string>

#include "absl/strings/str_cat.h"
#include "allocator/parallel.h"
#include "base/cpus.h"
#include "base/numa.h"
#include "base/status_macros.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23  // Linux 5.14
#endif

namespace somnus {
namespace {

// 8 took 0.034 s for a GiB on an H100's host, 16 took 0.024.
constexpr int kMaxThreads = 16;

int64_t WholeHugePages(int64_t bytes) {
  return (std::max<int64_t>(bytes, 1) + kHugePage - 1) / kHugePage * kHugePage;
}

}  // namespace

absl::Status ErrnoError(absl::string_view what, int64_t bytes) {
  const std::string text = absl::StrCat(what, " of ", bytes, " bytes: ", strerror(errno));
  return errno == ENOMEM ? absl::ResourceExhaustedError(text) : absl::InternalError(text);
}

absl::StatusOr<void*> MapAtHugePage(int64_t bytes, int protection, int flags) {
  const int64_t padded = bytes + kHugePage;
  void* raw = mmap(nullptr, padded, protection, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
  if (raw == MAP_FAILED) return ErrnoError("reserving an address range", bytes);
  char* begin = static_cast<char*>(raw);
  const int64_t head = (kHugePage - reinterpret_cast<uintptr_t>(begin) % kHugePage) % kHugePage;
  if (head > 0) munmap(begin, head);
  munmap(begin + head + bytes, padded - head - bytes);
  return static_cast<void*>(begin + head);
}

// Kernels before 5.14 lack POPULATE_WRITE: there each page is touched.
int PopulateRange(char* data, int64_t bytes) {
  if (bytes == 0) return 0;
  int result;
  do {
    result = madvise(data, bytes, MADV_POPULATE_WRITE);
  } while (result != 0 && (errno == EINTR || errno == EAGAIN));
  if (result == 0) return 0;
  if (errno != EINVAL) return errno;
  const int64_t page = sysconf(_SC_PAGESIZE);
  for (int64_t i = 0; i < bytes; i += page) {
    volatile char* byte = data + i;
    *byte = *byte;  // keeps the contents: the range may already hold data
  }
  return 0;
}

absl::StatusOr<void*> MapResidentPages(int64_t bytes, absl::Span<const int> numa_nodes) {
  const int64_t whole = WholeHugePages(bytes);
  ASSIGN_OR_RETURN(void* const data, MapAtHugePage(whole, PROT_READ | PROT_WRITE, 0));
  // Hints: without huge pages, and with memory of another node, the memory is only slower.
  madvise(data, whole, MADV_HUGEPAGE);
  PlacePages(data, whole, numa_nodes).IgnoreError();
  std::atomic<int> error{0};
  ParallelRanges(whole, kHugePage, std::min(NumAllowedCpus(), kMaxThreads), [&](int64_t begin, int64_t end) {
    if (const int failed = PopulateRange(static_cast<char*>(data) + begin, end - begin); failed != 0)
      error = failed;
  });
  if (error == 0) return data;
  munmap(data, whole);
  errno = error == EFAULT ? ENOMEM : error.load();
  return ErrnoError("populating memory", bytes);
}

void UnmapPages(void* data, int64_t bytes) { munmap(data, WholeHugePages(bytes)); }

}  // namespace somnus
