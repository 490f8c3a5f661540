#pragma once
// Small blocking messages and file descriptors over Unix sockets of the abstract namespace, with deadlines.
// Errors: DeadlineExceeded, Aborted (cancelled), Unavailable (the other side closed), AlreadyExists (name
// taken), Internal.

#include <unistd.h>

#include <cstdint>
#include <functional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/monotonic.h"

namespace somnus {

// Owns a file descriptor; -1 is none.
class UniqueFd {
 public:
  explicit UniqueFd(int fd = -1) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~UniqueFd() {
    if (fd_ >= 0) close(fd_);
  }
  int get() const { return fd_; }

 private:
  int fd_;
};

// How long a call waits for a peer process.
struct WaitLimit {
  WaitLimit(MonotonicTime deadline, std::function<bool()> cancelled = nullptr)
      : deadline(deadline), cancelled(std::move(cancelled)) {}

  MonotonicTime deadline;
  std::function<bool()> cancelled;  // asked some times a second; true ends the wait. Null: never

  // Milliseconds to block for before Check is to be called.
  int PollMs() const;
  // Ok while there is time left; Aborted or DeadlineExceeded.
  absl::Status Check() const;
};

// The socket's name is "somnus-<uid>-<name>", and gone when the listener is closed.
absl::StatusOr<UniqueFd> ListenAbstract(const std::string& name, int backlog);
// Returns the next connection of a process that runs as this user; closes connections of other users.
absl::StatusOr<UniqueFd> AcceptSameUser(int listener, const WaitLimit& limit);
// Tries until a process of this user listens.
absl::StatusOr<UniqueFd> ConnectAbstract(const std::string& name, const WaitLimit& limit);

// Whole messages: all `size` bytes, or an error.
absl::Status SendBytes(int connection, const void* data, size_t size);
absl::Status ReceiveBytes(int connection, void* data, size_t size, const WaitLimit& limit);

struct ReceivedFd {
  UniqueFd fd;
  int64_t tag;
};
// A file descriptor, and a number sent along.
absl::Status SendFd(int connection, int fd, int64_t tag);
absl::StatusOr<ReceivedFd> ReceiveFd(int connection, const WaitLimit& limit);

}  // namespace somnus
