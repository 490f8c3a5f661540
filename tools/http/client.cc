#include "tools/http/client.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/monotonic.h"
#include "base/status_macros.h"
#include "tools/http/response_reader.h"
#include "tools/http/sse.h"

namespace somnus {
namespace {

bool IsCancelled(const std::atomic<bool>* cancel) { return cancel != nullptr && cancel->load(); }

// Waits for `events` on `fd`. Cancelled when `cancel` turns true, DeadlineExceeded past `timeout`.
absl::Status WaitFor(int fd, short events, absl::Duration timeout, const std::atomic<bool>* cancel) {
  const MonotonicTime deadline = MonotonicNow() + timeout;
  while (true) {
    if (IsCancelled(cancel)) return absl::CancelledError("interrupted");
    pollfd entry{fd, events, 0};
    // poll waits in slices of time, so that a signal that arrives just before poll is noticed, too.
    const int64_t left = absl::ToInt64Milliseconds(deadline - MonotonicNow());
    const int n = poll(&entry, 1, static_cast<int>(std::clamp<int64_t>(left, 0, 200)));
    if (n > 0) return absl::OkStatus();
    if (n < 0 && errno != EINTR) return absl::InternalError(absl::StrCat("poll: ", strerror(errno)));
    if (left <= 0) return absl::DeadlineExceededError("no answer in time");
  }
}

// As WaitFor; calls watch.on_silence once, when nothing has arrived for watch.silence.
absl::Status WaitForAnswer(int fd, short events, absl::Duration timeout, const StreamWatch& watch,
                           bool* told) {
  if (!*told && watch.on_silence) {
    const absl::Status status = WaitFor(fd, events, std::min(watch.silence, timeout), watch.cancel);
    if (!absl::IsDeadlineExceeded(status)) return status;
    *told = true;
    watch.on_silence();
  }
  return WaitFor(fd, events, timeout, watch.cancel);
}

absl::StatusOr<int> ConnectTo(const addrinfo& address, const HttpClientOptions& options,
                              const std::atomic<bool>* cancel) {
  const int fd =
      socket(address.ai_family, address.ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC, address.ai_protocol);
  if (fd < 0) return absl::UnavailableError(strerror(errno));
  absl::Cleanup close_fd = [fd] { close(fd); };
  if (connect(fd, address.ai_addr, address.ai_addrlen) != 0 && errno != EINPROGRESS) {
    return absl::UnavailableError(strerror(errno));
  }
  RETURN_IF_ERROR(WaitFor(fd, POLLOUT, options.connect_timeout, cancel));
  int error = 0;
  socklen_t size = sizeof(error);
  getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size);
  if (error != 0) return absl::UnavailableError(strerror(error));
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  std::move(close_fd).Cancel();
  return fd;
}

absl::StatusOr<int> Connect(const HttpClientOptions& options, const std::atomic<bool>* cancel) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int rc = getaddrinfo(options.host.c_str(), absl::StrCat(options.port).c_str(), &hints, &found);
  if (rc != 0)
    return absl::UnavailableError(absl::StrCat("cannot look up ", options.host, ": ", gai_strerror(rc)));
  absl::Cleanup free_found = [found] { freeaddrinfo(found); };
  absl::Status last = absl::UnavailableError("no address");
  for (const addrinfo* address = found; address != nullptr; address = address->ai_next) {
    absl::StatusOr<int> fd = ConnectTo(*address, options, cancel);
    if (fd.ok() || absl::IsCancelled(fd.status())) return fd;
    last = fd.status();
  }
  return absl::UnavailableError(
      absl::StrCat("cannot connect to ", options.host, ":", options.port, ": ", last.message()));
}

// A connection, plain or over TLS. Attempts are as TlsClient's.
class Channel {
 public:
  static absl::StatusOr<Channel> Open(const HttpClientOptions& options, const std::atomic<bool>* cancel) {
    Channel channel;
    ASSIGN_OR_RETURN(channel.fd_, Connect(options, cancel));
    if (!options.tls.has_value()) return channel;
    TlsClientOptions tls = *options.tls;
    tls.host = options.host;
    ASSIGN_OR_RETURN(channel.tls_, TlsClient::Create(channel.fd_, tls));
    while (true) {
      const absl::StatusOr<TlsClient::Progress> progress = channel.tls_->Handshake();
      if (absl::IsUnavailable(progress.status())) {
        return absl::UnavailableError(absl::StrCat("cannot connect to ", options.host, ":", options.port,
                                                   " over TLS: ", progress.status().message()));
      }
      RETURN_IF_ERROR(progress.status());
      if (progress->wait_for == 0) return channel;
      RETURN_IF_ERROR(WaitFor(channel.fd_, progress->wait_for, options.connect_timeout, cancel));
    }
  }
  ~Channel() {
    if (fd_ >= 0) close(fd_);
  }
  Channel(Channel&& other) noexcept : fd_(std::exchange(other.fd_, -1)), tls_(std::move(other.tls_)) {}

  int fd() const { return fd_; }

  absl::Status SendAll(absl::string_view bytes, absl::Duration timeout, const std::atomic<bool>* cancel) {
    while (!bytes.empty()) {
      ASSIGN_OR_RETURN(const TlsClient::Progress progress, Write(bytes));
      bytes.remove_prefix(progress.bytes);
      if (progress.wait_for != 0) RETURN_IF_ERROR(WaitFor(fd_, progress.wait_for, timeout, cancel));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<TlsClient::Progress> Read(char* buffer, size_t size) {
    if (tls_ != nullptr) return tls_->Read(buffer, size);
    const ssize_t n = recv(fd_, buffer, size, 0);
    if (n >= 0) return TlsClient::Progress{.bytes = static_cast<size_t>(n), .at_end = n == 0};
    if (errno == EINTR || errno == EAGAIN || errno == EWOULDBLOCK)
      return TlsClient::Progress{.wait_for = POLLIN};
    return absl::DataLossError(absl::StrCat("the connection broke: ", strerror(errno)));
  }

 private:
  Channel() = default;

  absl::StatusOr<TlsClient::Progress> Write(absl::string_view bytes) {
    if (tls_ != nullptr) return tls_->Write(bytes);
    const ssize_t n = send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (n > 0) return TlsClient::Progress{.bytes = static_cast<size_t>(n)};
    if (errno == EINTR || errno == EAGAIN || errno == EWOULDBLOCK)
      return TlsClient::Progress{.wait_for = POLLOUT};
    return absl::UnavailableError(absl::StrCat("sending the request: ", strerror(errno)));
  }

  int fd_ = -1;
  std::unique_ptr<TlsClient> tls_;  // null: plain
};

}  // namespace

std::string HttpClient::Head(absl::string_view method, const std::string& path, size_t body_size) const {
  const bool ipv6 = absl::StrContains(options_.host, ':');
  const std::string host = ipv6 ? absl::StrCat("[", options_.host, "]") : options_.host;
  std::string head = absl::StrCat(method, " ", options_.prefix, path, " HTTP/1.1\r\nHost: ", host, ":",
                                  options_.port, "\r\nConnection: close\r\nUser-Agent: somnus-cli\r\n");
  if (!options_.api_key.empty()) absl::StrAppend(&head, "Authorization: Bearer ", options_.api_key, "\r\n");
  if (method == "POST") {
    absl::StrAppend(&head, "Content-Type: application/json\r\nContent-Length: ", body_size, "\r\n");
  }
  return absl::StrCat(head, "\r\n");
}

absl::StatusOr<HttpResponse> HttpClient::Get(const std::string& path) const {
  return Exchange(Head("GET", path, 0), "", {});
}

absl::StatusOr<HttpResponse> HttpClient::Post(const std::string& path, const std::string& json) const {
  return Exchange(Head("POST", path, json.size()), json, {});
}

absl::StatusOr<HttpResponse> HttpClient::Delete(const std::string& path) const {
  return Exchange(Head("DELETE", path, 0), "", {});
}

absl::StatusOr<HttpResponse> HttpClient::PostStream(const std::string& path, const std::string& json,
                                                    const StreamWatch& watch) const {
  return Exchange(Head("POST", path, json.size()), json, watch);
}

absl::StatusOr<HttpResponse> HttpClient::Exchange(const std::string& head, const std::string& body,
                                                  const StreamWatch& watch) const {
  ASSIGN_OR_RETURN(Channel channel, Channel::Open(options_, watch.cancel));
  RETURN_IF_ERROR(channel.SendAll(head + body, options_.read_timeout, watch.cancel));
  ResponseReader reader;
  SseParser sse;
  HttpResponse response;
  char buffer[16384];
  bool told_of_silence = false;
  while (!reader.done()) {
    ASSIGN_OR_RETURN(const TlsClient::Progress progress, channel.Read(buffer, sizeof(buffer)));
    if (progress.wait_for != 0) {
      RETURN_IF_ERROR(
          WaitForAnswer(channel.fd(), progress.wait_for, options_.read_timeout, watch, &told_of_silence));
      continue;
    }
    if (IsCancelled(watch.cancel)) return absl::CancelledError("interrupted");
    RETURN_IF_ERROR(progress.at_end ? reader.FeedEof()
                                    : reader.Feed(absl::string_view(buffer, progress.bytes)));
    if (!reader.header_done()) continue;
    response.status = reader.status();
    const std::string piece = reader.TakeBody();
    const bool events = watch.on_event && response.status == 200 &&
                        absl::StartsWith(reader.header("Content-Type"), "text/event-stream");
    if (!events) {
      response.body += piece;
      continue;
    }
    for (const std::string& event : sse.Feed(piece)) watch.on_event(event);
  }
  return response;
}

}  // namespace somnus
