#include "checkpoint/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace somnus {

std::string BaseName(absl::string_view path) {
  while (path.size() > 1 && path.back() == '/') path.remove_suffix(1);
  const size_t slash = path.rfind('/');
  return std::string(slash == absl::string_view::npos || path.size() == 1 ? path : path.substr(slash + 1));
}

std::string ResolvedName(const std::string& path) {
  const std::unique_ptr<char, decltype(&std::free)> real(realpath(path.c_str(), nullptr), &std::free);
  const std::string resolved = real == nullptr ? path : std::string(real.get());
  // A hub's cache names the folder of a version by a hash: models--OWNER--NAME/snapshots/HASH.
  std::vector<absl::string_view> parts = absl::StrSplit(resolved, '/');
  if (parts.size() > 3 && parts[parts.size() - 2] == "snapshots") {
    const absl::string_view model = parts[parts.size() - 3];
    const size_t name = model.rfind("--");
    if (absl::StartsWith(model, "models--") && name != model.npos) return std::string(model.substr(name + 2));
  }
  return BaseName(resolved);
}

MappedFile::MappedFile(std::string name, const uint8_t* data, uint64_t size, int fd)
    : name_(std::move(name)), data_(data), size_(size), fd_(fd) {}

MappedFile::~MappedFile() {
  guard_.reset();
  if (fd_ < 0) return;
  if (size_ > 0) munmap(const_cast<uint8_t*>(data_), size_);
  close(fd_);
}

namespace {

// A Git LFS pointer stands in place of a large file that git-lfs has not fetched: a few lines of text, the
// first of which names the format (https://github.com/git-lfs/git-lfs, docs/spec.md).
bool IsLfsPointer(const MappedFile& file) {
  constexpr uint64_t kMaxPointerBytes = 1024;
  return file.size() <= kMaxPointerBytes &&
         absl::StartsWith(file.text(), "version https://git-lfs.github.com/spec/");
}

bool IsLink(const std::string& path) {
  struct stat info;
  return lstat(path.c_str(), &info) == 0 && S_ISLNK(info.st_mode);
}

}  // namespace

absl::StatusOr<std::unique_ptr<MappedFile>> MappedFile::Open(const std::string& path) {
  std::string name = BaseName(path);
  // O_NONBLOCK: a FIFO without a writer must not hang us; the flag has no effect on regular files.
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  // Not NotFound: a caller that can do without the file would pass over the broken link.
  if (fd < 0 && errno == ENOENT && IsLink(path)) {
    return absl::FailedPreconditionError(
        absl::StrCat(name, ": a link to a file that is not there (is the download complete?)"));
  }
  absl::StatusOr<std::unique_ptr<MappedFile>> file = Map(std::move(name), fd);
  if (!file.ok() || !IsLfsPointer(**file)) return file;
  return absl::InvalidArgumentError(
      absl::StrCat((*file)->name(),
                   ": a Git LFS pointer in place of the file: \"git lfs pull\" in the folder fetches it"));
}

absl::StatusOr<std::unique_ptr<MappedFile>> MappedFile::OpenShared(const std::string& name) {
  constexpr size_t kMaxName = 255;
  const bool valid = name.size() > 1 && name.size() <= kMaxName && name[0] == '/' &&
                     name.find('/', 1) == std::string::npos && name.find('\0') == std::string::npos &&
                     name != "/." && name != "/..";
  if (!valid) {
    return absl::InvalidArgumentError(absl::StrCat(
        "shared memory \"", absl::CHexEscape(name.substr(0, kMaxName)),
        "\": its name has to be a slash and up to ", kMaxName - 1, " characters, none of them a slash"));
  }
  std::string text = absl::StrCat("shared memory ", name);
  const int fd = shm_open(name.c_str(), O_RDONLY | O_NONBLOCK, 0);
  return Map(std::move(text), fd);
}

absl::StatusOr<std::unique_ptr<MappedFile>> MappedFile::Map(std::string name, int fd) {
  if (fd < 0) return absl::ErrnoToStatus(errno, absl::StrCat(name, ": cannot open"));
  auto closer = absl::MakeCleanup([fd] { close(fd); });
  struct stat info;
  if (fstat(fd, &info) != 0) return absl::ErrnoToStatus(errno, absl::StrCat(name, ": cannot stat"));
  if (!S_ISREG(info.st_mode)) return absl::InvalidArgumentError(absl::StrCat(name, ": not a regular file"));
  const uint64_t size = static_cast<uint64_t>(info.st_size);
  const uint8_t* data = nullptr;
  if (size > 0) {
    void* map = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (map == MAP_FAILED) return absl::ErrnoToStatus(errno, absl::StrCat(name, ": cannot map"));
    data = static_cast<const uint8_t*>(map);
  }
  std::move(closer).Cancel();
  std::unique_ptr<MappedFile> file(new MappedFile(std::move(name), data, size, fd));
  if (size == 0) return file;
  file->guard_ = std::make_unique<MapGuard>(data, size);
  if (file->guard_->watching()) return file;
  return absl::ResourceExhaustedError(absl::StrCat(file->name(), ": too many files are open"));
}

// Reads, instead of only announcing the range: the kernel may ignore an announcement, and would not tell the
// end of its reading.
absl::Status MappedFile::ReadIntoPageCache(uint64_t begin, uint64_t end) const {
  if (fd_ < 0) return absl::OkStatus();
  end = std::min(end, size_);
  if (begin >= end) return absl::OkStatus();
  (void)posix_fadvise(fd_, static_cast<off_t>(begin), static_cast<off_t>(end - begin), POSIX_FADV_WILLNEED);
  std::array<char, 64 << 10> bytes;
  while (begin < end) {
    const ssize_t count =
        pread(fd_, bytes.data(), std::min<uint64_t>(bytes.size(), end - begin), static_cast<off_t>(begin));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return absl::ErrnoToStatus(errno, absl::StrCat(name_, ": cannot read"));
    if (count == 0) return CheckWhole();  // the file was cut
    begin += static_cast<uint64_t>(count);
  }
  return absl::OkStatus();
}

std::unique_ptr<MappedFile> MappedFile::Borrow(std::string name, absl::string_view bytes) {
  const auto* data = reinterpret_cast<const uint8_t*>(bytes.data());
  return std::unique_ptr<MappedFile>(new MappedFile(std::move(name), data, bytes.size(), /*fd=*/-1));
}

absl::Status MappedFile::CheckWhole() const {
  if (fd_ < 0) return absl::OkStatus();
  // The size is checked, too: bytes that were cut off within a page read as zeros without a fault.
  struct stat info;
  if (fstat(fd_, &info) != 0) return absl::ErrnoToStatus(errno, absl::StrCat(name_, ": cannot stat"));
  if (static_cast<uint64_t>(info.st_size) < size_) {
    return absl::DataLossError(absl::StrCat(name_, ": the file was cut to ", info.st_size, " of its ", size_,
                                            " bytes while it was in use"));
  }
  if (guard_ == nullptr || !guard_->lost()) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(name_, ": a part of the file could not be read"));
}

}  // namespace somnus
