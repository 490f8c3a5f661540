#include "allocator/spill_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include <utility>

#include "absl/strings/str_cat.h"

namespace somnus {
namespace {

// Returns -1 with errno. File systems without nameless files get a name that is removed at once.
int OpenNameless(const std::string& dir, int flags) {
  const int fd = open(dir.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC | flags, 0600);
  if (fd >= 0 || (errno != EOPNOTSUPP && errno != EISDIR)) return fd;
  std::string path = dir + "/somnus-spill-XXXXXX";
  const int named = mkostemp(path.data(), O_CLOEXEC | flags);
  if (named >= 0) unlink(path.c_str());
  return named;
}

}  // namespace

absl::StatusOr<std::unique_ptr<SpillFile>> SpillFile::Open(const std::string& dir) {
  int fd = OpenNameless(dir, O_DIRECT);
  const bool direct = fd >= 0;
  if (!direct && errno == EINVAL) fd = OpenNameless(dir, 0);
  if (fd < 0) return absl::ErrnoToStatus(errno, absl::StrCat("a spill file in ", dir));
  return std::unique_ptr<SpillFile>(new SpillFile(dir, fd, direct));
}

SpillFile::~SpillFile() { close(fd_); }

absl::Status SpillFile::Error(int error, const char* what) const {
  const std::string text = absl::StrCat(what, " the spill file in ", dir_);
  if (error == EDQUOT || error == EFBIG) return absl::ResourceExhaustedError(text);
  return absl::ErrnoToStatus(error, text);
}

absl::StatusOr<int64_t> SpillFile::Take(int64_t bytes) {
  const int64_t offset = FindFree(bytes);
  // Space that is there before anything is written: a full disk shows here. Not every file system can.
  int result;
  do {
    result = fallocate(fd_, 0, offset, bytes);
  } while (result != 0 && errno == EINTR);
  if (result == 0 || errno == EOPNOTSUPP || errno == ENOSYS) return offset;
  const int error = errno;
  Give(offset, bytes);
  return Error(error, absl::StrCat("no room for ", bytes, " bytes in").c_str());
}

int64_t SpillFile::FindFree(int64_t bytes) {
  for (auto it = free_.begin(); it != free_.end(); ++it) {
    const auto [offset, free] = *it;
    if (free < bytes) continue;
    free_.erase(it);
    if (free > bytes) free_[offset + bytes] = free - bytes;
    return offset;
  }
  return std::exchange(size_, size_ + bytes);
}

void SpillFile::Give(int64_t offset, int64_t bytes) {
  auto it = free_.emplace(offset, bytes).first;
  if (const auto next = std::next(it); next != free_.end() && offset + bytes == next->first) {
    it->second += next->second;
    free_.erase(next);
  }
  if (it != free_.begin()) {
    const auto before = std::prev(it);
    if (before->first + before->second == offset) {
      before->second += it->second;
      free_.erase(it);
      it = before;
    }
  }
  // Where the file system cannot give space back in the middle, the file's end does, and the remaining space
  // is used again.
  if (it->first + it->second == size_) {
    size_ = it->first;
    free_.erase(it);
    if (ftruncate(fd_, size_) != 0) return;
  } else {
    fallocate(fd_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, offset, bytes);
  }
}

absl::Status SpillFile::DropCache() {
  if (fdatasync(fd_) != 0) return Error(errno, "writing");
  posix_fadvise(fd_, 0, 0, POSIX_FADV_DONTNEED);
  return absl::OkStatus();
}

}  // namespace somnus
