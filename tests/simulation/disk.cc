// The calls of the system are defined here, so no header may have put checking calls in their places.
#undef _FORTIFY_SOURCE
#include "tests/simulation/disk.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "allocator/spill_io.h"

namespace somnus {

// Threads do all: the simulation does not see the work of a ring of the kernel.
std::unique_ptr<SpillIo> MakeUringSpillIo(int, int) { return nullptr; }

namespace simulation {
namespace {

Disk* the_disk = nullptr;

constexpr double kShortProbability = 0.1;         // a call moves less than asked for
constexpr double kInterruptedProbability = 0.02;  // a call moves nothing, and is to be made again

}  // namespace

// All ranks' weights fit in several times.
Disk::Disk(World* world)
    : world_(*world),
      random_(world->random()),
      direct_(random_.Chance(0.7)),
      preallocates_(random_.Chance(0.7)),
      punches_(random_.Chance(0.8)),
      capacity_pages_(random_.Between(20, 60)) {
  if (std::exchange(the_disk, this) != nullptr) std::abort();
}

Disk::~Disk() { the_disk = nullptr; }

Disk* Disk::current() { return the_disk; }

void Disk::Fill(absl::Duration duration) {
  world_.Log(absl::StrCat("the disk is full for ", absl::FormatDuration(duration)));
  filled_until_ = std::max(filled_until_, world_.now() + duration);
}

int64_t Disk::UsedBytes(int pid) const {
  int64_t pages = 0;
  for (const auto& [number, file] : files_)
    if (file.pid == pid) pages += static_cast<int64_t>(file.pages.size());
  return pages * kPageBytes;
}

bool Disk::HasFiles(int pid) const {
  return std::any_of(files_.begin(), files_.end(),
                     [pid](const auto& file) { return file.second.pid == pid; });
}

int64_t Disk::FreeBytes() const {
  return world_.now() < filled_until_ ? 0 : (capacity_pages_ - used_pages_) * kPageBytes;
}

Disk::File* Disk::Find(int file) {
  const auto found = files_.find(file);
  if (found != files_.end()) return &found->second;
  world_.Violate("a spill file is used after its end");
  return nullptr;
}

// Every call takes a moment.
void Disk::Spend() { world_.Sleep(random_.Between(absl::Microseconds(10), absl::Milliseconds(1))); }

// A call that takes space or writes asks once.
bool Disk::IsFullNow() {
  if (fail_in_ == 0 || --fail_in_ > 0) return false;
  ++num_full_;
  return true;
}

int Disk::TakePage(File* file, int64_t page) {
  if (file->pages.count(page) > 0) return 0;
  if (FreeBytes() < kPageBytes) {
    ++num_full_;
    return -ENOSPC;
  }
  ++used_pages_;
  file->pages[page];
  return 0;
}

int Disk::Open(int flags) {
  if ((flags & O_DIRECT) != 0 && !direct_) return -EINVAL;
  const int number = next_file_++, pid = world_.current_process();
  files_[number].pid = pid;
  world_.OnEnd(pid, [this, number] {
    if (files_.count(number) > 0) Close(number);
  });
  return number;
}

int Disk::Close(int file) {
  const File* const closed = Find(file);
  if (closed == nullptr) return -EBADF;
  used_pages_ -= static_cast<int64_t>(closed->pages.size());
  files_.erase(file);
  return 0;
}

int Disk::Allocate(int file, int mode, int64_t offset, int64_t bytes) {
  File* const changed = Find(file);
  if (changed == nullptr) return -EBADF;
  const int64_t first = offset / kPageBytes, end = first + bytes / kPageBytes;
  if ((mode & FALLOC_FL_PUNCH_HOLE) != 0) {
    if (!punches_) return -EOPNOTSUPP;
    used_pages_ -= static_cast<int64_t>(std::erase_if(
        changed->pages, [&](const auto& page) { return page.first >= first && page.first < end; }));
    return 0;
  }
  if (!preallocates_) return -EOPNOTSUPP;
  if (IsFullNow()) return -ENOSPC;
  for (int64_t page = first; page < end; ++page) {
    if (const int error = TakePage(changed, page); error != 0) return error;  // keeps the pages taken so far
  }
  changed->size = std::max(changed->size, offset + bytes);
  return 0;
}

int Disk::Truncate(int file, int64_t bytes) {
  File* const changed = Find(file);
  if (changed == nullptr) return -EBADF;
  used_pages_ -= static_cast<int64_t>(
      std::erase_if(changed->pages, [&](const auto& page) { return page.first * kPageBytes >= bytes; }));
  changed->size = bytes;
  return 0;
}

// Space that was not taken before may be missing only now.
int Disk::Sync(int file) {
  File* const changed = Find(file);
  if (changed == nullptr) return -EBADF;
  Spend();
  if (!std::exchange(changed->dirty, false)) return 0;
  return IsFullNow() ? -ENOSPC : 0;
}

int64_t Disk::SomePages(int64_t bytes) {
  const int64_t pages = bytes / kPageBytes;
  return pages > 1 && random_.Chance(kShortProbability) ? random_.Between(1, pages - 1) * kPageBytes : bytes;
}

int64_t Disk::Write(int file, const char* data, int64_t bytes, int64_t offset) {
  Spend();
  File* const written = Find(file);
  if (written == nullptr) return -EBADF;
  if (random_.Chance(kInterruptedProbability)) return -EINTR;
  if (IsFullNow()) return -ENOSPC;
  bytes = SomePages(bytes);
  ++num_writes_;
  written->dirty = true;
  for (int64_t moved = 0; moved < bytes; moved += kPageBytes) {
    const int64_t page = (offset + moved) / kPageBytes;
    if (const int error = TakePage(written, page); error != 0) return moved > 0 ? moved : error;
    written->pages[page].assign(data + moved, kPageBytes);
    written->size = std::max(written->size, offset + moved + kPageBytes);
  }
  return bytes;
}

int64_t Disk::Read(int file, char* data, int64_t bytes, int64_t offset) {
  Spend();
  const File* const read = Find(file);
  if (read == nullptr) return -EBADF;
  if (random_.Chance(kInterruptedProbability)) return -EINTR;
  bytes = SomePages(std::min(bytes, std::max<int64_t>(0, read->size - offset)));
  for (int64_t moved = 0; moved < bytes; moved += kPageBytes) {
    const auto page = read->pages.find((offset + moved) / kPageBytes);
    const bool written = page != read->pages.end() && !page->second.empty();
    if (written) {
      std::memcpy(data + moved, page->second.data(), kPageBytes);
    } else {
      std::memset(data + moved, 0, kPageBytes);
    }
  }
  if (bytes > 0 && damage_in_ > 0 && --damage_in_ == 0) {
    ++num_damaged_;
    *data = '#';
  }
  return bytes;
}

}  // namespace simulation
}  // namespace somnus

namespace {

using somnus::simulation::Disk;

// The disk, where `file` is a file on the disk.
Disk* DiskOf(int file) { return file >= Disk::kFirstFile ? Disk::current() : nullptr; }

// As the system returns it.
template <typename Result>
Result Returned(Result result) {
  if (result >= 0) return result;
  errno = static_cast<int>(-result);
  return -1;
}

}  // namespace

extern "C" {

int open(const char* path, int flags, ...) {
  if (Disk::current() != nullptr && path == Disk::kDir) return Returned(Disk::current()->Open(flags));
  va_list rest;
  va_start(rest, flags);
  const int mode = (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(rest, int) : 0;
  va_end(rest);
  return static_cast<int>(syscall(SYS_openat, AT_FDCWD, path, flags, mode));
}
int close(int file) {
  Disk* const disk = DiskOf(file);
  return disk != nullptr ? Returned(disk->Close(file)) : static_cast<int>(syscall(SYS_close, file));
}
int fallocate(int file, int mode, off_t offset, off_t bytes) {
  Disk* const disk = DiskOf(file);
  return disk != nullptr ? Returned(disk->Allocate(file, mode, offset, bytes))
                         : static_cast<int>(syscall(SYS_fallocate, file, mode, offset, bytes));
}
int ftruncate(int file, off_t bytes) noexcept {
  Disk* const disk = DiskOf(file);
  return disk != nullptr ? Returned(disk->Truncate(file, bytes))
                         : static_cast<int>(syscall(SYS_ftruncate, file, bytes));
}
int fdatasync(int file) {
  Disk* const disk = DiskOf(file);
  return disk != nullptr ? Returned(disk->Sync(file)) : static_cast<int>(syscall(SYS_fdatasync, file));
}
int posix_fadvise(int file, off_t offset, off_t bytes, int advice) noexcept {
  if (DiskOf(file) != nullptr) return 0;
  return syscall(SYS_fadvise64, file, offset, bytes, advice) == 0 ? 0 : errno;
}
ssize_t pread(int file, void* data, size_t bytes, off_t offset) {
  Disk* const disk = DiskOf(file);
  if (disk == nullptr) return syscall(SYS_pread64, file, data, bytes, offset);
  return Returned(disk->Read(file, static_cast<char*>(data), static_cast<int64_t>(bytes), offset));
}
ssize_t pwrite(int file, const void* data, size_t bytes, off_t offset) {
  Disk* const disk = DiskOf(file);
  if (disk == nullptr) return syscall(SYS_pwrite64, file, data, bytes, offset);
  return Returned(disk->Write(file, static_cast<const char*>(data), static_cast<int64_t>(bytes), offset));
}
int fstatvfs(int file, struct statvfs* info) noexcept {
  Disk* const disk = DiskOf(file);
  if (disk == nullptr) {
    errno = ENOSYS;  // nothing else asks
    return -1;
  }
  *info = {};
  info->f_frsize = Disk::kPageBytes;
  info->f_bavail = static_cast<fsblkcnt_t>(disk->FreeBytes() / Disk::kPageBytes);
  return 0;
}

}  // extern "C"
