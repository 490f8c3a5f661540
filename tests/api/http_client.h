#pragma once
// A blocking HTTP client on a raw socket, for tests that send what HTTP libraries refuse to send.

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/tls_client.h"

namespace somnus {

struct HttpReply {
  int status = 0;  // 0: no response came
  std::string head, body;
};

class HttpClient {
 public:
  explicit HttpClient(uint16_t port) : fd_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (::connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) Close();
  }
  ~HttpClient() { Close(); }
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  // From now on writes and reads go over TLS.
  absl::Status StartTls(const TlsClientOptions& options) {
    const timeval patience{20, 0};
    ::setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    absl::StatusOr<std::unique_ptr<TlsClient>> tls = TlsClient::Create(fd_, options);
    if (!tls.ok()) return tls.status();
    tls_ = *std::move(tls);
    const absl::StatusOr<TlsClient::Progress> done = tls_->Handshake();
    if (done.ok() && done->wait_for != 0) return absl::DeadlineExceededError("the handshake takes long");
    return done.status();
  }
  void Close() {
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
  }
  // Nothing more will be written.
  void Finish() { ::shutdown(fd_, SHUT_WR); }
  // Ends with a reset instead of a FIN.
  void Reset() {
    const linger hard{1, 0};
    ::setsockopt(fd_, SOL_SOCKET, SO_LINGER, &hard, sizeof(hard));
    Close();
  }
  bool Write(const std::string& data) {
    for (size_t at = 0; at < data.size();) {
      const ssize_t n = Send(data.data() + at, data.size() - at);
      if (n <= 0) return false;
      at += n;
    }
    return true;
  }
  // Appends to the buffer; returns false at the end of the connection, or when nothing comes for 20 s.
  bool Fill() {
    char data[4096];
    const ssize_t n = Receive(data, sizeof(data));
    if (n <= 0) return false;
    buffer_.append(data, n);
    return true;
  }
  bool ReadUntil(const std::string& mark) {
    while (!absl::StrContains(buffer_, mark)) {
      if (!Fill()) return false;
    }
    return true;
  }
  HttpReply ReadReply() {
    HttpReply reply;
    if (!ReadUntil("\r\n\r\n")) return reply;
    const size_t end = buffer_.find("\r\n\r\n") + 4;
    reply.head = Take(end);
    if (!absl::SimpleAtoi(reply.head.substr(9, 3), &reply.status)) return reply;
    if (reply.status == 100) return ReadReply();
    if (reply.status == 204 || reply.status == 304) return reply;
    size_t length = 0;
    if (const size_t at = reply.head.find("Content-Length: "); at != std::string::npos) {
      length = std::strtoul(reply.head.c_str() + at + 16, nullptr, 10);
      while (buffer_.size() < length && Fill()) {
      }
      reply.body = Take(length);
    } else if (absl::StrContains(reply.head, "chunked")) {
      while (ReadChunk(&reply.body)) {
      }
    } else {
      while (Fill()) {
      }
      reply.body = Take(buffer_.size());
    }
    return reply;
  }
  // Returns true when the server closes the connection.
  bool ReadsEof() {
    while (Fill()) {
    }
    pollfd fd{fd_, POLLIN, 0};
    return ::poll(&fd, 1, 0) > 0;
  }
  const std::string& buffered() const { return buffer_; }
  // Over TLS: whether the server has said that nothing more comes.
  bool ended_in_order() const { return ended_in_order_; }

 private:
  ssize_t Send(const char* data, size_t size) {
    if (tls_ == nullptr) return ::send(fd_, data, size, MSG_NOSIGNAL);
    const absl::StatusOr<TlsClient::Progress> sent = tls_->Write(absl::string_view(data, size));
    return sent.ok() ? static_cast<ssize_t>(sent->bytes) : -1;
  }
  ssize_t Receive(char* data, size_t size) {
    if (fd_ < 0) return -1;
    if (tls_ == nullptr) {
      pollfd fd{fd_, POLLIN, 0};
      return ::poll(&fd, 1, 20000) > 0 ? ::recv(fd_, data, size, 0) : -1;
    }
    const absl::StatusOr<TlsClient::Progress> got = tls_->Read(data, size);
    if (!got.ok()) return -1;
    ended_in_order_ = got->at_end;
    return static_cast<ssize_t>(got->bytes);
  }
  std::string Take(size_t n) {
    n = std::min(n, buffer_.size());
    std::string taken = buffer_.substr(0, n);
    buffer_.erase(0, n);
    return taken;
  }
  bool ReadChunk(std::string* body) {
    if (!ReadUntil("\r\n")) return false;
    const size_t line = buffer_.find("\r\n") + 2;
    const size_t length = std::strtoul(Take(line).c_str(), nullptr, 16);
    while (buffer_.size() < length + 2) {
      if (!Fill()) return false;
    }
    *body += Take(length);
    Take(2);
    return length > 0;
  }

  int fd_;
  std::unique_ptr<TlsClient> tls_;  // null: plain
  bool ended_in_order_ = false;
  std::string buffer_;
};

inline std::string RequestText(const std::string& method, const std::string& path, const std::string& body,
                               const std::string& headers = "") {
  std::string text = absl::StrCat(method, " ", path, " HTTP/1.1\r\nHost: test\r\n", headers);
  if (!body.empty())
    absl::StrAppend(&text, "Content-Type: application/json\r\nContent-Length: ", body.size(), "\r\n");
  return absl::StrCat(text, "\r\n", body);
}

}  // namespace somnus
