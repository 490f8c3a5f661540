#include "coordinator/livez_probe.h"

#include <netdb.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <memory>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/tls_client.h"

namespace somnus {
namespace {

constexpr absl::string_view kRequest = "GET /livez HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
constexpr absl::string_view kAnswer = "HTTP/1.1 200";

// Sends the request and reads the start of the response, as long as kAnswer; shorter when the server sends
// less.
std::string Ask(int fd) {
  std::string start(kAnswer.size(), '\0');
  size_t size = 0;
  if (send(fd, kRequest.data(), kRequest.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(kRequest.size()))
    return "";
  while (size < start.size()) {
    const ssize_t got = recv(fd, start.data() + size, start.size() - size, 0);
    if (got <= 0) break;
    size += static_cast<size_t>(got);
  }
  start.resize(size);
  return start;
}

// As Ask. The socket waits, so an operation that would have to be tried again has timed out.
std::string AskOverTls(int fd) {
  const absl::StatusOr<std::unique_ptr<TlsClient>> tls =
      TlsClient::Create(fd, {.host = "localhost", .verify = false});
  if (!tls.ok()) return "";
  const absl::StatusOr<TlsClient::Progress> greeted = (*tls)->Handshake();
  if (!greeted.ok() || greeted->wait_for != 0) return "";
  const absl::StatusOr<TlsClient::Progress> sent = (*tls)->Write(kRequest);
  if (!sent.ok() || sent->bytes != kRequest.size()) return "";
  std::string start(kAnswer.size(), '\0');
  size_t size = 0;
  while (size < start.size()) {
    const absl::StatusOr<TlsClient::Progress> got = (*tls)->Read(start.data() + size, start.size() - size);
    if (!got.ok() || got->bytes == 0) break;
    size += got->bytes;
  }
  start.resize(size);
  return start;
}

}  // namespace

bool ProbeLivez(const std::string& host, int port, bool tls, absl::Duration timeout) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), absl::StrCat(port).c_str(), &hints, &found) != 0) return false;
  const auto free_found = absl::MakeCleanup([&] { freeaddrinfo(found); });
  const int fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return false;
  const auto close_fd = absl::MakeCleanup([&] { close(fd); });
  const timeval limit = absl::ToTimeval(timeout);
  setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));  // which also bounds connect
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
  if (connect(fd, found->ai_addr, found->ai_addrlen) != 0) return false;
  return (tls ? AskOverTls(fd) : Ask(fd)) == kAnswer;
}

}  // namespace somnus
