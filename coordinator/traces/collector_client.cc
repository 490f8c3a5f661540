#include "coordinator/traces/collector_client.h"

#include <errno.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "coordinator/traces/name_lookup.h"

namespace somnus {
namespace {

constexpr size_t kMaxHeadBytes = 16 << 10;  // of an answer

absl::Status StatusOfAnswer(absl::string_view head) {
  // "HTTP/1.1 200 OK"
  constexpr size_t kStatusAt = 9, kStatusDigits = 3;
  int status = 0;
  if (!absl::StartsWith(head, "HTTP/1.") || head.size() < kStatusAt + kStatusDigits ||
      !absl::SimpleAtoi(head.substr(kStatusAt, kStatusDigits), &status))
    return absl::UnknownError("the answer is no HTTP");
  if (status >= 200 && status < 300) return absl::OkStatus();
  const bool may_retry = status == 429 || status == 502 || status == 503 || status == 504;
  const std::string message = absl::StrCat("the answer has status ", status);
  return may_retry ? absl::UnavailableError(message) : absl::UnknownError(message);
}

}  // namespace

// Owns the socket.
class CollectorClient::Exchange {
 public:
  Exchange(const CollectorClient& client, MonotonicTime deadline) : client_(client), deadline_(deadline) {}
  ~Exchange() { CloseSocket(); }
  Exchange(const Exchange&) = delete;

  // Tries the addresses one after the other.
  absl::Status Connect() {
    const CollectorUrl& url = client_.url_;
    ASSIGN_OR_RETURN(const Addresses addresses,
                     LookUp(url.host, url.port, deadline_, [this] { return client_.cancelled_.load(); }));
    absl::Status status = absl::UnavailableError("the host has no address");
    for (const addrinfo* address = addresses.get(); address != nullptr; address = address->ai_next) {
      status = ConnectTo(*address);
      if (status.ok()) return status;
    }
    return status;
  }

  absl::Status Write(absl::string_view data) {
    while (!data.empty()) {
      const ssize_t sent = send(fd_, data.data(), data.size(), MSG_NOSIGNAL);
      if (sent > 0) data.remove_prefix(static_cast<size_t>(sent));
      if (sent < 0) RETURN_IF_ERROR(WaitAfterError(POLLOUT));
    }
    return absl::OkStatus();
  }

  // Up to the empty line, or to the end of what the collector sends.
  absl::StatusOr<std::string> ReadHead() {
    std::string head;
    char piece[2048];
    while (!absl::StrContains(head, "\r\n\r\n") && head.size() < kMaxHeadBytes) {
      const ssize_t got = recv(fd_, piece, sizeof(piece), 0);
      if (got == 0) break;
      if (got > 0) head.append(piece, static_cast<size_t>(got));
      if (got < 0) RETURN_IF_ERROR(WaitAfterError(POLLIN));
    }
    if (head.empty()) return absl::UnavailableError("the connection was closed without an answer");
    return head;
  }

 private:
  absl::Status ConnectTo(const addrinfo& address) {
    CloseSocket();
    fd_ = socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd_ < 0) return Error(errno);
    if (connect(fd_, address.ai_addr, address.ai_addrlen) == 0) return absl::OkStatus();
    if (errno != EINPROGRESS) return Error(errno);
    RETURN_IF_ERROR(WaitFor(POLLOUT));
    int error = 0;
    socklen_t size = sizeof(error);
    getsockopt(fd_, SOL_SOCKET, SO_ERROR, &error, &size);
    return error == 0 ? absl::OkStatus() : Error(error);
  }

  // The caller could not go on, and waits until the socket is ready for `events`.
  absl::Status WaitAfterError(short events) const {
    if (errno == EINTR) return absl::OkStatus();
    return errno == EAGAIN || errno == EWOULDBLOCK ? WaitFor(events) : Error(errno);
  }

  absl::Status WaitFor(short events) const {
    while (!client_.cancelled_) {
      const absl::Duration left = deadline_ - MonotonicNow();
      if (left <= absl::ZeroDuration()) return absl::UnavailableError("there was no answer in time");
      pollfd waited = {fd_, events, 0};
      const auto patience = static_cast<int>(absl::ToInt64Milliseconds(std::min(left, kCancelLook))) + 1;
      const int ready = poll(&waited, 1, patience);
      if (ready > 0) return absl::OkStatus();
      if (ready < 0 && errno != EINTR) return Error(errno);
    }
    return absl::UnavailableError("the server ends");
  }

  static absl::Status Error(int error) {
    return absl::UnavailableError(absl::ErrnoToStatus(error, "").message());
  }

  void CloseSocket() {
    if (fd_ >= 0) close(fd_);
    fd_ = -1;
  }

  const CollectorClient& client_;
  const MonotonicTime deadline_;
  int fd_ = -1;
};

absl::Status CollectorClient::Send(const std::string& body, absl::Duration timeout) {
  Exchange exchange(*this, MonotonicNow() + timeout);
  RETURN_IF_ERROR(exchange.Connect());
  RETURN_IF_ERROR(exchange.Write(absl::StrCat("POST ", url_.path, " HTTP/1.1\r\nHost: ", url_.authority(),
                                              "\r\nContent-Type: application/json\r\nContent-Length: ",
                                              body.size(), "\r\nConnection: close\r\n\r\n")));
  RETURN_IF_ERROR(exchange.Write(body));
  ASSIGN_OR_RETURN(const std::string head, exchange.ReadHead());
  return StatusOfAnswer(head);
}

}  // namespace somnus
