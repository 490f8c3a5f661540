#include "worker/comm/tcp_socket.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>

#include <algorithm>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "base/host_port.h"
#include "base/status_macros.h"

namespace somnus {
namespace {

constexpr int kBacklog = 256;

absl::Status ErrnoError(absl::string_view what, int error = errno) {
  return absl::UnavailableError(absl::StrCat(what, ": ", strerror(error)));
}

absl::StatusOr<std::vector<SocketAddress>> Resolve(const std::string& host, const std::string& port,
                                                   int flags) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  if (const int error = getaddrinfo(host.empty() ? nullptr : host.c_str(), port.c_str(), &hints, &found);
      error != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("address of '", host, ":", port, "': ", gai_strerror(error)));
  }
  const auto free_found = absl::MakeCleanup([&] { freeaddrinfo(found); });
  std::vector<SocketAddress> addresses;
  for (const addrinfo* info = found; info != nullptr; info = info->ai_next) {
    SocketAddress& address = addresses.emplace_back();
    memcpy(&address.storage, info->ai_addr, info->ai_addrlen);
    address.size = info->ai_addrlen;
  }
  return addresses;
}

absl::StatusOr<UniqueFd> NewSocket(const SocketAddress& address) {
  UniqueFd fd(socket(address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (fd.get() < 0) return ErrnoError("socket");
  return fd;
}

const sockaddr* AsSockaddr(const SocketAddress& address) {
  return reinterpret_cast<const sockaddr*>(&address.storage);
}

absl::StatusOr<TcpListener> ListenOn(const SocketAddress& address) {
  TcpListener listener;
  ASSIGN_OR_RETURN(listener.fd, NewSocket(address));
  if (bind(listener.fd.get(), AsSockaddr(address), address.size) != 0) return ErrnoError("bind");
  if (listen(listener.fd.get(), kBacklog) != 0) return ErrnoError("listen");
  SocketAddress bound;
  bound.size = sizeof(bound.storage);
  if (getsockname(listener.fd.get(), reinterpret_cast<sockaddr*>(&bound.storage), &bound.size) != 0) {
    return ErrnoError("getsockname");
  }
  listener.port = ntohs(bound.storage.ss_family == AF_INET6
                            ? reinterpret_cast<const sockaddr_in6*>(&bound.storage)->sin6_port
                            : reinterpret_cast<const sockaddr_in*>(&bound.storage)->sin_port);
  return listener;
}

absl::Status SetInt(int fd, int level, int option, int value) {
  if (setsockopt(fd, level, option, &value, sizeof(value)) == 0) return absl::OkStatus();
  return ErrnoError("setsockopt");
}

}  // namespace

absl::StatusOr<TcpListener> ListenOnTcp(const std::string& host) {
  ASSIGN_OR_RETURN(std::vector<SocketAddress> addresses, Resolve(host, "0", 0));
  absl::Status last;
  for (const SocketAddress& address : addresses) {
    absl::StatusOr<TcpListener> listener = ListenOn(address);
    if (listener.ok()) return listener;
    last = listener.status();
  }
  ASSIGN_OR_RETURN(addresses, Resolve("", "0", AI_PASSIVE));
  for (const SocketAddress& address : addresses) {
    absl::StatusOr<TcpListener> listener = ListenOn(address);
    if (listener.ok()) return listener;
    last = listener.status();
  }
  return absl::UnavailableError(absl::StrCat("no port can be opened for ", host, ": ", last.message()));
}

absl::StatusOr<std::vector<SocketAddress>> ResolveTcp(const std::string& address) {
  const std::optional<HostPort> parts = SplitHostPort(address);
  if (!parts.has_value()) return absl::InvalidArgumentError(absl::StrCat("'", address, "' is not host:port"));
  return Resolve(parts->host, parts->port, 0);
}

absl::StatusOr<UniqueFd> StartConnect(const SocketAddress& address) {
  ASSIGN_OR_RETURN(UniqueFd fd, NewSocket(address));
  if (connect(fd.get(), AsSockaddr(address), address.size) == 0 || errno == EINPROGRESS) return fd;
  return ErrnoError("connect");
}

absl::Status FinishConnect(int fd) {
  int error = 0;
  socklen_t size = sizeof(error);
  if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) != 0) return ErrnoError("getsockopt");
  return error == 0 ? absl::OkStatus() : ErrnoError("connect", error);
}

absl::StatusOr<UniqueFd> AcceptTcp(int listener) {
  while (true) {
    UniqueFd fd(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (fd.get() >= 0 || errno == EAGAIN || errno == EWOULDBLOCK) return fd;
    // Errors of a connection that ended before the accept are not the listener's own.
    const bool of_listener = errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM ||
                             errno == EBADF || errno == EINVAL || errno == ENOTSOCK;
    if (of_listener) return ErrnoError("accept");
  }
}

absl::Status SetUpConnection(int fd, absl::Duration unreachable, bool while_sending) {
  // The first probe comes after a second; the last probe, unanswered, ends the connection.
  const int probes = static_cast<int>(std::max<int64_t>(1, absl::ToInt64Seconds(unreachable) - 1));
  RETURN_IF_ERROR(SetInt(fd, IPPROTO_TCP, TCP_NODELAY, 1));
  RETURN_IF_ERROR(SetInt(fd, SOL_SOCKET, SO_KEEPALIVE, 1));
  RETURN_IF_ERROR(SetInt(fd, IPPROTO_TCP, TCP_KEEPIDLE, 1));
  RETURN_IF_ERROR(SetInt(fd, IPPROTO_TCP, TCP_KEEPINTVL, 1));
  RETURN_IF_ERROR(SetInt(fd, IPPROTO_TCP, TCP_KEEPCNT, probes));
  if (!while_sending) return absl::OkStatus();
  return SetInt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, static_cast<int>(absl::ToInt64Milliseconds(unreachable)));
}

}  // namespace somnus
