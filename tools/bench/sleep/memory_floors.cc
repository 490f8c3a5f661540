#include "tools/bench/sleep/memory_floors.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <thread>
#include <vector>

#include "base/monotonic.h"
#include "base/status_macros.h"

namespace somnus {
namespace {

constexpr int64_t kHugePage = 2 << 20;
constexpr int64_t kDiskBytes = 256 << 20;
constexpr int64_t kDiskPiece = 8 << 20;

class Mapping {
 public:
  explicit Mapping(int64_t bytes) : bytes_(bytes + kHugePage) {
    raw_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (raw_ != MAP_FAILED) madvise(raw_, bytes_, MADV_HUGEPAGE);
  }
  ~Mapping() {
    if (raw_ != MAP_FAILED) munmap(raw_, bytes_);
  }
  Mapping(const Mapping&) = delete;

  bool ok() const { return raw_ != MAP_FAILED; }
  char* data() const {
    const auto at = reinterpret_cast<uintptr_t>(raw_);
    return reinterpret_cast<char*>((at + kHugePage - 1) / kHugePage * kHugePage);
  }
  // Unmaps the memory, once.
  void End() {
    munmap(raw_, bytes_);
    raw_ = MAP_FAILED;
  }

 private:
  const int64_t bytes_;
  void* raw_;
};

// Seconds that `threads` threads take for [0, bytes) together.
double Time(int64_t bytes, int threads, const std::function<void(int64_t begin, int64_t end)>& work) {
  const MonotonicTime start = MonotonicNow();
  std::vector<std::thread> others;
  for (int i = 1; i < threads; ++i)
    others.emplace_back([&, i] { work(bytes * i / threads, bytes * (i + 1) / threads); });
  work(0, bytes / threads);
  for (std::thread& other : others) other.join();
  return absl::ToDoubleSeconds(MonotonicNow() - start);
}

// One byte of every page: the kernel makes huge pages where possible.
void Touch(char* data, int64_t begin, int64_t end) {
  for (int64_t at = begin; at < end; at += 4096) *const_cast<volatile char*>(data + at) = 1;
}

absl::Status MoveAll(int fd, char* data, int64_t bytes, bool write) {
  for (int64_t at = 0; at < bytes; at += kDiskPiece) {
    const int64_t piece = std::min(kDiskPiece, bytes - at);
    const int64_t moved = write ? pwrite(fd, data, piece, at) : pread(fd, data, piece, at);
    if (moved != piece) return absl::ErrnoToStatus(moved < 0 ? errno : ENOSPC, "the disk's speed");
  }
  return absl::OkStatus();
}

// As with the spill file: past the page cache.
absl::Status MeasureDisk(const std::string& dir, char* data, int64_t bytes, SleepFloors* floors) {
  const int fd = open(dir.c_str(), O_TMPFILE | O_RDWR | O_DIRECT | O_CLOEXEC, 0600);
  if (fd < 0) return absl::ErrnoToStatus(errno, "the disk's speed in " + dir);
  if (fallocate(fd, 0, 0, bytes) != 0 && errno == ENOSPC) {
    close(fd);
    return absl::ResourceExhaustedError("no room for the disk's speed in " + dir);
  }
  const MonotonicTime start = MonotonicNow();
  absl::Status status = MoveAll(fd, data, bytes, true);
  const MonotonicTime written = MonotonicNow();
  status.Update(MoveAll(fd, data, bytes, false));
  floors->disk_write = static_cast<double>(bytes) / absl::ToDoubleSeconds(written - start);
  floors->disk_read = static_cast<double>(bytes) / absl::ToDoubleSeconds(MonotonicNow() - written);
  close(fd);
  return status;
}

}  // namespace

absl::StatusOr<SleepFloors> MeasureFloors(int64_t bytes, int threads, const std::string& spill_dir) {
  SleepFloors floors;
  const auto size = static_cast<double>(bytes);
  const auto fault = [&](const Mapping& memory) {
    return Time(bytes, threads, [&](int64_t begin, int64_t end) { Touch(memory.data(), begin, end); });
  };
  Mapping from(bytes), before(bytes);
  if (!from.ok() || !before.ok()) return absl::ResourceExhaustedError("no memory for the floors");
  fault(from);
  // The timed faults afterwards get this memory again: in a virtual machine the first touch ever can be
  // twenty times slower.
  fault(before);
  const MonotonicTime start = MonotonicNow();
  before.End();
  floors.release = size / absl::ToDoubleSeconds(MonotonicNow() - start);
  Mapping to(bytes);
  if (!to.ok()) return absl::ResourceExhaustedError("no memory for the floors");
  floors.fault = size / fault(to);
  floors.copy = size / Time(bytes, threads, [&](int64_t begin, int64_t end) {
                  memcpy(to.data() + begin, from.data() + begin, end - begin);
                });
  if (!spill_dir.empty())
    RETURN_IF_ERROR(MeasureDisk(spill_dir, from.data(), std::min(bytes, kDiskBytes), &floors));
  return floors;
}

}  // namespace somnus
