#include "base/small_file.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "absl/cleanup/cleanup.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace somnus {
namespace {

absl::Status Wrong(const std::string& path, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(path, what));
}

absl::StatusOr<std::string> Read(const std::string& path, size_t max_bytes, bool is_private) {
  // O_NONBLOCK: a FIFO without a writer holds up nobody; the flag has no effect on regular files.
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return Wrong(path, absl::StrCat(" cannot be read: ", strerror(errno)));
  const auto close_file = absl::MakeCleanup([fd] { close(fd); });
  struct stat info;
  if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) return Wrong(path, " is not a regular file");
  if (is_private && (info.st_mode & (S_IWGRP | S_IRWXO)) != 0)
    return Wrong(path, " is open to others; make it so by chmod 600");
  std::string text(max_bytes + 1, '\0');
  size_t size = 0;
  while (size < text.size()) {
    const ssize_t count = read(fd, text.data() + size, text.size() - size);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return Wrong(path, absl::StrCat(" cannot be read: ", strerror(errno)));
    if (count == 0) break;
    size += static_cast<size_t>(count);
  }
  if (size > max_bytes) return Wrong(path, absl::StrCat(" is longer than ", max_bytes, " bytes"));
  text.resize(size);
  return text;
}

}  // namespace

absl::StatusOr<std::string> ReadSmallFile(const std::string& path, size_t max_bytes) {
  return Read(path, max_bytes, /*is_private=*/false);
}

absl::StatusOr<std::string> ReadPrivateFile(const std::string& path, size_t max_bytes) {
  return Read(path, max_bytes, /*is_private=*/true);
}

}  // namespace somnus
