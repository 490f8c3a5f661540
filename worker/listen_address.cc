#include "worker/listen_address.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/host_port.h"
#include "base/status_macros.h"

namespace somnus {
namespace {

constexpr size_t kMaxSocketPath = sizeof(sockaddr_un::sun_path) - 1;

absl::StatusOr<HostPort> ParseAddress(const std::string& address) {
  if (std::optional<HostPort> parts = SplitHostPort(address); parts.has_value()) return *std::move(parts);
  return absl::InvalidArgumentError(absl::StrCat("'", address, "' is neither host:port nor unix:/path"));
}

// The local address that packets to `address` would leave from. Connecting a UDP socket sends nothing.
absl::StatusOr<std::string> LocalAddressTowards(const std::string& address) {
  ASSIGN_OR_RETURN(const HostPort target, ParseAddress(address));
  addrinfo hints = {};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  if (const int error = getaddrinfo(target.host.c_str(), target.port.c_str(), &hints, &found); error != 0) {
    return absl::InvalidArgumentError(absl::StrCat("coordinator ", address, ": ", gai_strerror(error)));
  }
  const auto free_found = absl::MakeCleanup([&] { freeaddrinfo(found); });
  for (const addrinfo* info = found; info != nullptr; info = info->ai_next) {
    const int fd = socket(info->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0) continue;
    const auto close_fd = absl::MakeCleanup([&] { close(fd); });
    sockaddr_storage local;
    socklen_t size = sizeof(local);
    char text[NI_MAXHOST];
    if (connect(fd, info->ai_addr, info->ai_addrlen) == 0 &&
        getsockname(fd, reinterpret_cast<sockaddr*>(&local), &size) == 0 &&
        getnameinfo(reinterpret_cast<sockaddr*>(&local), size, text, sizeof(text), nullptr, 0,
                    NI_NUMERICHOST) == 0) {
      return std::string(text);
    }
  }
  return absl::UnavailableError(absl::StrCat("there is no way to the coordinator at ", address));
}

// `made` is the directory that was created for it, or "".
absl::StatusOr<std::string> ChooseSocketPath(const std::string& coordinator, std::string* made) {
  const std::string name = absl::StrCat("worker-", getpid(), ".sock");
  const std::string path(absl::StripPrefix(coordinator, "unix:"));
  const size_t slash = path.rfind('/');
  if (slash != std::string::npos && slash > 0) {
    const std::string directory = path.substr(0, slash);
    const std::string beside = absl::StrCat(directory, "/", name);
    if (beside.size() <= kMaxSocketPath && access(directory.c_str(), W_OK) == 0) return beside;
  }
  std::string directory = "/tmp/somnus-worker-XXXXXX";
  if (mkdtemp(directory.data()) == nullptr) {
    return absl::UnavailableError(absl::StrCat("no directory for a socket in /tmp: ", strerror(errno)));
  }
  *made = directory;
  return absl::StrCat(directory, "/", name);
}

}  // namespace

absl::StatusOr<ListenAddress> ListenAddress::Choose(const std::string& coordinator,
                                                    const std::string& listen) {
  ListenAddress address;
  if (absl::StartsWith(listen, "unix:")) {
    address.socket_path_ = std::string(absl::StripPrefix(listen, "unix:"));
  } else if (!listen.empty()) {
    RETURN_IF_ERROR(ParseAddress(listen).status());
    address.bind_ = listen;
    return address;
  } else if (absl::StartsWith(coordinator, "unix:")) {
    ASSIGN_OR_RETURN(address.socket_path_, ChooseSocketPath(coordinator, &address.directory_));
  } else {
    ASSIGN_OR_RETURN(const std::string local, LocalAddressTowards(coordinator));
    address.bind_ = JoinHostPort(local, 0);
    return address;
  }
  RETURN_IF_ERROR(address.BindSocket());
  return address;
}

absl::StatusOr<ListenAddress> ListenAddress::Beside(const std::string& suffix) const {
  ListenAddress address;
  if (socket_path_.empty()) {
    address.bind_ = JoinHostPort(SplitHostPort(bind_)->host, 0);
    return address;
  }
  address.socket_path_ = absl::StrCat(socket_path_, suffix);
  RETURN_IF_ERROR(address.BindSocket());
  return address;
}

absl::Status ListenAddress::BindSocket() {
  if (socket_path_.size() > kMaxSocketPath) {
    return absl::InvalidArgumentError(
        absl::StrCat("listen: the socket's path has more than ", kMaxSocketPath, " bytes"));
  }
  bind_ = absl::StrCat("unix:", socket_path_);
  return absl::OkStatus();
}

ListenAddress::ListenAddress(ListenAddress&& other) noexcept
    : bind_(std::exchange(other.bind_, "")),
      socket_path_(std::exchange(other.socket_path_, "")),
      directory_(std::exchange(other.directory_, "")) {}

ListenAddress::~ListenAddress() {
  if (!socket_path_.empty()) unlink(socket_path_.c_str());
  if (!directory_.empty()) rmdir(directory_.c_str());
}

std::string ListenAddress::Advertised(int port, const std::string& host) const {
  if (!socket_path_.empty()) return bind_;
  return JoinHostPort(host.empty() ? SplitHostPort(bind_)->host : host, port);
}

}  // namespace somnus
