#include "checkpoint/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace somnus {

std::string BaseName(absl::string_view path) {
  while (path.size() > 1 && path.back() == '/') path.remove_suffix(1);
  const size_t slash = path.rfind('/');
  return std::string(slash == absl::string_view::npos || path.size() == 1 ? path : path.substr(slash + 1));
}

MappedFile::MappedFile(std::string name, const uint8_t* data, uint64_t size, bool mapped)
    : name_(std::move(name)), data_(data), size_(size), mapped_(mapped) {}

MappedFile::~MappedFile() {
  if (mapped_ && size_ > 0) munmap(const_cast<uint8_t*>(data_), size_);
}

absl::StatusOr<std::unique_ptr<MappedFile>> MappedFile::Open(const std::string& path) {
  std::string name = BaseName(path);
  // O_NONBLOCK: a FIFO without a writer must not hang us; it has no effect on regular files.
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
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
  return std::unique_ptr<MappedFile>(new MappedFile(std::move(name), data, size, /*mapped=*/true));
}

std::unique_ptr<MappedFile> MappedFile::Borrow(std::string name, absl::string_view bytes) {
  const auto* data = reinterpret_cast<const uint8_t*>(bytes.data());
  return std::unique_ptr<MappedFile>(new MappedFile(std::move(name), data, bytes.size(), /*mapped=*/false));
}

}  // namespace somnus
