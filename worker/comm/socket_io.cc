#include "worker/comm/socket_io.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cstddef>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/running_clock.h"
#include "base/status_macros.h"

namespace somnus {
namespace {

constexpr absl::Duration kConnectRetry = absl::Milliseconds(2);
constexpr int64_t kCancelPollMs = 50, kLongestPollMs = 60'000;

absl::Status ErrnoError(absl::string_view what) {
  const std::string text = absl::StrCat(what, ": ", strerror(errno));
  const bool gone = errno == EPIPE || errno == ECONNRESET;
  return gone ? absl::UnavailableError(text) : absl::InternalError(text);
}

struct Address {
  sockaddr_un addr = {};
  socklen_t size = 0;
};

absl::StatusOr<Address> AbstractAddress(const std::string& name) {
  const std::string full = absl::StrCat("somnus-", getuid(), "-", name);
  Address address;
  if (full.size() + 1 > sizeof(address.addr.sun_path)) {
    return absl::InvalidArgumentError(absl::StrCat("group name too long: ", name));
  }
  address.addr.sun_family = AF_UNIX;
  memcpy(address.addr.sun_path + 1, full.data(), full.size());  // a leading 0 byte: not in any file system
  address.size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + full.size());
  return address;
}

absl::StatusOr<UniqueFd> NewSocket() {
  UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (fd.get() < 0) return ErrnoError("socket");
  return fd;
}

// A message of a tag with room for a file descriptor. Points into itself, and so is not copied.
struct FdMessage {
  FdMessage() {
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    header.msg_control = control;
    header.msg_controllen = sizeof(control);
  }
  FdMessage(const FdMessage&) = delete;
  FdMessage& operator=(const FdMessage&) = delete;

  int64_t tag = 0;
  iovec part = {&tag, sizeof(tag)};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr header = {};
};

absl::Status WaitReadable(int fd, const WaitLimit& limit) {
  while (true) {
    pollfd poll_fd = {fd, POLLIN, 0};
    const int ready = poll(&poll_fd, 1, limit.PollMs());
    if (ready > 0) return absl::OkStatus();
    if (ready < 0 && errno != EINTR) return ErrnoError("poll");
    RETURN_IF_ERROR(limit.Check());
  }
}

bool SameUser(int connection) {
  ucred peer;
  socklen_t size = sizeof(peer);
  return getsockopt(connection, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.uid == getuid();
}

}  // namespace

int WaitLimit::PollMs() const {
  const absl::Duration left = absl::Ceil(deadline - RunningNow(), absl::Milliseconds(1));
  const int64_t longest = cancelled == nullptr ? kLongestPollMs : kCancelPollMs;
  return static_cast<int>(std::clamp<int64_t>(absl::ToInt64Milliseconds(left), 0, longest));
}

absl::Status WaitLimit::Check() const {
  if (cancelled != nullptr && cancelled()) return absl::AbortedError("the wait was cancelled");
  return RunningNow() < deadline ? absl::OkStatus() : absl::DeadlineExceededError("nothing came in time");
}

absl::StatusOr<UniqueFd> ListenAbstract(const std::string& name, int backlog) {
  ASSIGN_OR_RETURN(const Address address, AbstractAddress(name));
  ASSIGN_OR_RETURN(UniqueFd fd, NewSocket());
  if (bind(fd.get(), reinterpret_cast<const sockaddr*>(&address.addr), address.size) != 0) {
    if (errno == EADDRINUSE)
      return absl::AlreadyExistsError(absl::StrCat("group ", name, " exists on this host"));
    return ErrnoError("bind");
  }
  if (listen(fd.get(), backlog) != 0) return ErrnoError("listen");
  return fd;
}

absl::StatusOr<UniqueFd> AcceptSameUser(int listener, const WaitLimit& limit) {
  while (true) {
    RETURN_IF_ERROR(WaitReadable(listener, limit));
    UniqueFd fd(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC));
    if (fd.get() >= 0 && SameUser(fd.get())) return fd;
    if (fd.get() < 0 && errno != EINTR && errno != ECONNABORTED) return ErrnoError("accept");
  }
}

absl::StatusOr<UniqueFd> ConnectAbstract(const std::string& name, const WaitLimit& limit) {
  ASSIGN_OR_RETURN(const Address address, AbstractAddress(name));
  while (true) {
    ASSIGN_OR_RETURN(UniqueFd fd, NewSocket());
    if (connect(fd.get(), reinterpret_cast<const sockaddr*>(&address.addr), address.size) == 0) {
      if (SameUser(fd.get())) return fd;
      return absl::PermissionDeniedError(absl::StrCat("group ", name, " belongs to another user"));
    }
    if (errno != ECONNREFUSED && errno != EINTR && errno != EAGAIN) return ErrnoError("connect");
    RETURN_IF_ERROR(limit.Check());
    absl::SleepFor(kConnectRetry);
  }
}

absl::Status SendBytes(int connection, const void* data, size_t size) {
  const char* at = static_cast<const char*>(data);
  while (size > 0) {
    const ssize_t sent = send(connection, at, size, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0) return ErrnoError("send");
    at += sent;
    size -= sent;
  }
  return absl::OkStatus();
}

absl::Status ReceiveBytes(int connection, void* data, size_t size, const WaitLimit& limit) {
  char* at = static_cast<char*>(data);
  while (size > 0) {
    RETURN_IF_ERROR(WaitReadable(connection, limit));
    const ssize_t got = recv(connection, at, size, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return ErrnoError("receive");
    if (got == 0) return absl::UnavailableError("the other side closed the connection");
    at += got;
    size -= got;
  }
  return absl::OkStatus();
}

absl::Status SendFd(int connection, int fd, int64_t tag) {
  FdMessage message;
  message.tag = tag;
  cmsghdr* header = CMSG_FIRSTHDR(&message.header);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  memcpy(CMSG_DATA(header), &fd, sizeof(int));
  ssize_t sent;
  do {
    sent = sendmsg(connection, &message.header, MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  return sent == sizeof(tag) ? absl::OkStatus() : ErrnoError("sending a file descriptor");
}

absl::StatusOr<ReceivedFd> ReceiveFd(int connection, const WaitLimit& limit) {
  RETURN_IF_ERROR(WaitReadable(connection, limit));
  FdMessage message;
  ssize_t got;
  do {
    got = recvmsg(connection, &message.header, MSG_CMSG_CLOEXEC);
  } while (got < 0 && errno == EINTR);
  if (got < 0) return ErrnoError("receiving a file descriptor");
  const cmsghdr* header = CMSG_FIRSTHDR(&message.header);
  if (got != sizeof(message.tag) || header == nullptr || header->cmsg_type != SCM_RIGHTS) {
    return absl::UnavailableError("no file descriptor came");
  }
  int fd;
  memcpy(&fd, CMSG_DATA(header), sizeof(int));
  return ReceivedFd{UniqueFd(fd), message.tag};
}

}  // namespace somnus
