#include "base/small_file.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>

#include "absl/cleanup/cleanup.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/monotonic.h"
#include "base/status_macros.h"

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

std::string CannotRead() { return absl::StrCat("cannot be read: ", strerror(errno)); }

// Waits until the file has bytes, or none will come. `told`: the line about the wait was written.
absl::Status AwaitBytes(int fd, const std::string& path, const PipePatience& patience, bool* told) {
  const MonotonicTime begin = MonotonicNow();
  while (true) {
    const absl::Duration waited = MonotonicNow() - begin;
    if (waited >= patience.limit) {
      return absl::DeadlineExceededError(absl::StrCat(
          "is no regular file, and nothing was written to it for ", absl::FormatDuration(patience.limit)));
    }
    if (!*told && waited >= patience.notice) {
      *told = true;
      std::fprintf(stderr, "%s: waiting for text from %s, for at most %s\n", program_invocation_short_name,
                   path.c_str(), absl::FormatDuration(patience.limit).c_str());
    }
    const absl::Duration left = (*told ? patience.limit : patience.notice) - waited;
    pollfd file = {.fd = fd, .events = POLLIN, .revents = 0};
    const int ready = poll(&file, 1, static_cast<int>(absl::ToInt64Milliseconds(left)) + 1);
    if (ready < 0 && errno != EINTR) return absl::InvalidArgumentError(CannotRead());
    // A FIFO that nobody has opened for writing yet is not ready, although a read finds its end.
    if (ready > 0) return absl::OkStatus();
  }
}

}  // namespace

absl::StatusOr<std::string> ReadPipedFile(const std::string& path, size_t max_bytes,
                                          const PipePatience& patience) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (fd < 0) return absl::NotFoundError(CannotRead());
  const auto close_file = absl::MakeCleanup([fd] { close(fd); });
  std::string text(max_bytes + 1, '\0');
  size_t size = 0;
  bool told = false;
  const MonotonicTime begin = MonotonicNow();
  while (size < text.size()) {
    if (MonotonicNow() - begin >= patience.total)
      return absl::DeadlineExceededError(
          absl::StrCat("has not ended within ", absl::FormatDuration(patience.total)));
    RETURN_IF_ERROR(AwaitBytes(fd, path, patience, &told));
    const ssize_t count = read(fd, text.data() + size, text.size() - size);
    if (count < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (count < 0) return absl::InvalidArgumentError(CannotRead());
    if (count == 0) break;
    size += static_cast<size_t>(count);
  }
  if (size > max_bytes)
    return absl::InvalidArgumentError(absl::StrCat("has more than ", max_bytes, " bytes"));
  text.resize(size);
  return text;
}

absl::StatusOr<std::string> ReadSmallFile(const std::string& path, size_t max_bytes) {
  return Read(path, max_bytes, /*is_private=*/false);
}

absl::StatusOr<std::string> ReadPrivateFile(const std::string& path, size_t max_bytes) {
  return Read(path, max_bytes, /*is_private=*/true);
}

}  // namespace somnus
