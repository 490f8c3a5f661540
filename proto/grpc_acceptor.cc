#include "proto/grpc_acceptor.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/heartbeat.h"
#include "base/host_port.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "base/threads.h"

namespace somnus {
namespace {

constexpr int kBacklog = 4096;
// The pause after a lack of descriptors, in which connections may end.
constexpr int kShortageMs = 100;
constexpr int kTurnMs = 500;  // the longest time without a sign of life
// A stranger that connects and says nothing is cut off after that.
constexpr absl::Duration kHandshakeTime = absl::Seconds(10);
// Of the descriptors of the listener's use, unproven connections take at most this share.
constexpr int64_t kUnprovenShare = 8;
constexpr absl::Duration kDropLineInterval = absl::Minutes(1);

bool Enable(int fd, int level, int option, int value = 1) {
  return setsockopt(fd, level, option, &value, sizeof(value)) == 0;
}

// Returns a socket that listens; -1, with errno. `dual`: an IPv6 socket for IPv4 and IPv6.
int Listen(const sockaddr* address, socklen_t size, bool dual) {
  const int fd = socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return -1;
  // Accepted sockets inherit TCP_NODELAY.
  const bool set = Enable(fd, SOL_SOCKET, SO_REUSEADDR) && Enable(fd, IPPROTO_TCP, TCP_NODELAY) &&
                   (address->sa_family != AF_INET6 || Enable(fd, IPPROTO_IPV6, IPV6_V6ONLY, dual ? 0 : 1));
  if (set && bind(fd, address, size) == 0 && listen(fd, kBacklog) == 0) return fd;
  const int error = errno;
  close(fd);
  errno = error;
  return -1;
}

int PortOf(int fd) {
  sockaddr_storage bound = {};
  socklen_t size = sizeof(bound);
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&bound), &size) != 0) return 0;
  return ntohs(bound.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6*>(&bound)->sin6_port
                                           : reinterpret_cast<const sockaddr_in*>(&bound)->sin_port);
}

bool IsWildcard(const sockaddr* address) {
  if (address->sa_family == AF_INET)
    return reinterpret_cast<const sockaddr_in*>(address)->sin_addr.s_addr == htonl(INADDR_ANY);
  return address->sa_family == AF_INET6 &&
         IN6_IS_ADDR_UNSPECIFIED(&reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr);
}

void SetPort(sockaddr* address, int port) {
  if (address->sa_family == AF_INET6) {
    reinterpret_cast<sockaddr_in6*>(address)->sin6_port = htons(static_cast<uint16_t>(port));
  } else {
    reinterpret_cast<sockaddr_in*>(address)->sin_port = htons(static_cast<uint16_t>(port));
  }
}

// Listens on all IPv6 and IPv4 addresses where the system has IPv6, else on all addresses of `found`'s
// family.
int ListenOnWildcard(const addrinfo& found) {
  sockaddr_in6 any = {};
  any.sin6_family = AF_INET6;
  any.sin6_port = reinterpret_cast<const sockaddr_in*>(found.ai_addr)->sin_port;  // at the same offset
  const int fd = Listen(reinterpret_cast<const sockaddr*>(&any), sizeof(any), /*dual=*/true);
  return fd >= 0 ? fd : Listen(found.ai_addr, found.ai_addrlen, /*dual=*/false);
}

bool IsSocket(const char* path) {
  struct stat found;
  return lstat(path, &found) == 0 && S_ISSOCK(found.st_mode);
}

bool IsShortage(int error) {
  return error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM;
}

}  // namespace

GrpcAcceptor::GrpcAcceptor(std::string address, int64_t bound, int max_handshakes)
    : address_(std::move(address)),
      bound_(bound),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      max_handshakes_(max_handshakes) {}

GrpcAcceptor::~GrpcAcceptor() {
  Stop();
  if (wake_ >= 0) close(wake_);
}

absl::StatusOr<std::unique_ptr<GrpcAcceptor>> GrpcAcceptor::Open(const std::string& address,
                                                                 DescriptorUse use, int max_handshakes) {
  auto acceptor = std::unique_ptr<GrpcAcceptor>(
      new GrpcAcceptor(address, RaiseDescriptorLimit().Of(use), max_handshakes));
  RETURN_IF_ERROR(acceptor->Bind());
  if (max_handshakes > 0 && acceptor->port_ != 0) {
    const int64_t most = std::min<int64_t>(max_handshakes, acceptor->bound_ / kUnprovenShare);
    // gRPC's clock may be ahead of this one by the time that it takes to begin the handshake.
    acceptor->unproven_ =
        std::make_shared<UnprovenConnections>(static_cast<int>(most), kHandshakeTime + absl::Seconds(1));
  }
  return acceptor;
}

absl::Status GrpcAcceptor::BindSocket(const std::string& path) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof(address.sun_path))
    return absl::InvalidArgumentError(
        absl::StrCat("'", address_, "': a socket's path has 1 to ", sizeof(address.sun_path) - 1, " bytes"));
  path.copy(address.sun_path, path.size());
  if (IsSocket(address.sun_path)) unlink(address.sun_path);
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  // No client can connect before listen, so the mode comes in time.
  if (fd >= 0 && bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0) {
    socket_path_ = path;
    listeners_.push_back(fd);
    if (chmod(address.sun_path, S_IRUSR | S_IWUSR) == 0 && listen(fd, kBacklog) == 0) return absl::OkStatus();
    return absl::UnavailableError(absl::StrCat("cannot listen on ", address_, ": ", strerror(errno)));
  }
  const int error = errno;
  if (fd >= 0) close(fd);
  return absl::UnavailableError(absl::StrCat("cannot listen on ", address_, ": ", strerror(error)));
}

absl::Status GrpcAcceptor::Bind() {
  if (absl::string_view path = address_; absl::ConsumePrefix(&path, "unix:"))
    return BindSocket(std::string(path));
  const std::optional<HostPort> parts = SplitHostPort(address_);
  if (!parts.has_value()) return absl::InvalidArgumentError(absl::StrCat("'", address_, "' is no host:port"));
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  if (const int error = getaddrinfo(parts->host.c_str(), parts->port.c_str(), &hints, &found); error != 0)
    return absl::UnavailableError(absl::StrCat("cannot listen on ", address_, ": ", gai_strerror(error)));
  const auto free_found = absl::MakeCleanup([&] { freeaddrinfo(found); });
  int error = EADDRNOTAVAIL;
  for (const addrinfo* info = found; info != nullptr; info = info->ai_next) {
    if (port_ != 0) SetPort(info->ai_addr, port_);
    const int fd = IsWildcard(info->ai_addr) ? ListenOnWildcard(*info)
                                             : Listen(info->ai_addr, info->ai_addrlen, /*dual=*/false);
    if (fd < 0) {
      error = errno;
      continue;
    }
    listeners_.push_back(fd);
    port_ = PortOf(fd);
    if (IsWildcard(info->ai_addr)) break;
  }
  if (!listeners_.empty()) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("cannot listen on ", address_, ": ", strerror(error)));
}

void GrpcAcceptor::AddTo(grpc::ServerBuilder* builder,
                         const std::shared_ptr<grpc::ServerCredentials>& credentials) {
  if (max_handshakes_ > 0) {
    builder->AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS,
                                static_cast<int>(absl::ToInt64Milliseconds(kHandshakeTime)));
  }
  if (unproven_ != nullptr) ProveByCalls(unproven_, builder);
  server_ = builder->experimental().AddExternalConnectionAcceptor(
      grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD, credentials);
}

absl::Status GrpcAcceptor::Start() {
  ASSIGN_OR_RETURN(thread_, StartThread([this] { Run(); }));
  return absl::OkStatus();
}

void GrpcAcceptor::Stop() {
  if (thread_.joinable()) {
    const uint64_t one = 1;
    (void)!write(wake_, &one, sizeof(one));
    thread_.join();
  }
  for (const int fd : listeners_) close(fd);
  listeners_.clear();
  if (!socket_path_.empty()) unlink(std::exchange(socket_path_, "").c_str());
}

void GrpcAcceptor::Run() {
  const Heartbeat heartbeat("", absl::StrCat("gRPC listener ", address_));
  std::vector<pollfd> fds = {{wake_, POLLIN, 0}};
  for (const int fd : listeners_) fds.push_back({fd, POLLIN, 0});
  while (true) {
    heartbeat.Beat();
    if (unproven_ != nullptr) unproven_->Sweep();
    for (pollfd& fd : fds) fd.revents = 0;
    if (poll(fds.data(), fds.size(), kTurnMs) < 0 && errno != EINTR) return;
    if (fds[0].revents != 0) return;
    for (size_t i = 1; i < fds.size(); ++i) {
      if (fds[i].revents == 0 || AcceptOne(fds[i].fd)) continue;
      pollfd wake = {wake_, POLLIN, 0};
      poll(&wake, 1, kShortageMs);
    }
  }
}

bool GrpcAcceptor::AcceptOne(int listener) {
  const int fd = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
  if (fd < 0) {
    if (!IsShortage(errno)) return true;  // the client has left, or another process has the connection
    NoteShortage(strerror(errno));
    return false;
  }
  if (fd >= bound_) {
    close(fd);
    ++num_refused_;
    NoteShortage("all descriptors are taken but for those that are kept back");
    return true;
  }
  short_ = false;
  if (unproven_ != nullptr && unproven_->Add(fd)) NoteDrop();
  grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters connection;
  connection.listener_fd = listener;
  connection.fd = fd;
  server_->HandleNewConnection(&connection);
  return true;
}

void GrpcAcceptor::NoteDrop() {
  const MonotonicTime now = MonotonicNow();
  if (now < next_drop_line_) return;
  next_drop_line_ = now + kDropLineInterval;
  LogWarning(
      "{}: more connections than --max-handshakes have not shown that they belong to the cluster; the oldest "
      "gives way to the newest ({} so far)",
      address_, unproven_->num_closed());
}

void GrpcAcceptor::NoteShortage(const char* what) {
  if (std::exchange(short_, true)) return;
  LogWarning("no connection can be accepted on {} for now: {}", address_, what);
}

}  // namespace somnus
