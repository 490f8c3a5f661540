// Messages to a collector over real sockets.

#include "coordinator/traces/collector_client.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace somnus {
namespace {

// A server on a port of its own that takes one connection, reads a whole request and answers with fixed
// bytes.
class OneAnswer {
 public:
  explicit OneAnswer(std::string answer) : answer_(std::move(answer)) {
    listener_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    EXPECT_EQ(bind(listener_, reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(listen(listener_, 1), 0);
    EXPECT_EQ(getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size), 0);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] { Serve(); });
  }
  ~OneAnswer() { Join(); }

  int port() const { return port_; }
  // The request that came. To be called after the message was sent.
  const std::string& request() {
    Join();
    return request_;
  }

 private:
  void Serve() {
    const int fd = accept(listener_, nullptr, nullptr);
    char piece[4096];
    while (!absl::EndsWith(request_, "}")) {
      const ssize_t got = recv(fd, piece, sizeof(piece), 0);
      if (got <= 0) break;
      request_.append(piece, static_cast<size_t>(got));
    }
    (void)send(fd, answer_.data(), answer_.size(), MSG_NOSIGNAL);
    close(fd);
  }
  void Join() {
    if (!thread_.joinable()) return;
    thread_.join();
    close(listener_);
  }

  const std::string answer_;
  int listener_ = -1;
  int port_ = 0;
  std::string request_;
  std::thread thread_;
};

CollectorUrl At(int port, const std::string& host = "127.0.0.1") {
  return {.host = host, .port = port, .path = "/v1/traces"};
}

TEST(CollectorClientTest, AMessageIsAPostWithJson) {
  OneAnswer collector("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}");
  CollectorClient client(At(collector.port(), "localhost"));
  const absl::Status status = client.Send(R"({"a":1})", absl::Seconds(60));
  EXPECT_TRUE(status.ok()) << status;
  const std::string& request = collector.request();
  EXPECT_TRUE(absl::StartsWith(request, "POST /v1/traces HTTP/1.1\r\n")) << request;
  EXPECT_TRUE(absl::StrContains(request, absl::StrCat("\r\nHost: localhost:", collector.port(), "\r\n")));
  EXPECT_TRUE(absl::StrContains(request, "\r\nContent-Type: application/json\r\n"));
  EXPECT_TRUE(absl::EndsWith(request, "\r\n\r\n{\"a\":1}"));
}

TEST(CollectorClientTest, StatusesSayWhetherToTryAgain) {
  const std::pair<const char*, absl::StatusCode> answers[] = {
      {"HTTP/1.1 503 Busy\r\n\r\n", absl::StatusCode::kUnavailable},
      {"HTTP/1.1 429 Slow down\r\n\r\n", absl::StatusCode::kUnavailable},
      {"HTTP/1.1 400 Bad\r\n\r\n", absl::StatusCode::kUnknown},
      {"HTTP/1.1 404 None\r\n\r\n", absl::StatusCode::kUnknown},
      {"SSH-2.0-x\r\n", absl::StatusCode::kUnknown},
      {"", absl::StatusCode::kUnavailable},
      {"HTTP/1.1 202 Taken\r\n\r\n", absl::StatusCode::kOk}};
  for (const auto& [answer, code] : answers) {
    OneAnswer collector(answer);
    EXPECT_EQ(CollectorClient(At(collector.port())).Send("{}", absl::Seconds(60)).code(), code) << answer;
  }
}

TEST(CollectorClientTest, WhereNobodyListensOrNoHostIsTheCollectorIsUnavailable) {
  int port;
  {
    OneAnswer gone("");
    port = gone.port();
    (void)CollectorClient(At(port)).Send("{}", absl::Seconds(60));
  }
  EXPECT_TRUE(absl::IsUnavailable(CollectorClient(At(port)).Send("{}", absl::Seconds(60))));
  EXPECT_TRUE(absl::IsUnavailable(
      CollectorClient(At(1, "no.such.host.invalid")).Send("{}", absl::Milliseconds(300))));
}

TEST(CollectorClientTest, ACollectorThatNeverAnswersIsGivenUp) {
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  ASSERT_EQ(bind(listener, reinterpret_cast<sockaddr*>(&address), size), 0);
  ASSERT_EQ(listen(listener, 8), 0);
  ASSERT_EQ(getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size), 0);
  CollectorClient client(At(ntohs(address.sin_port)));
  EXPECT_TRUE(absl::IsUnavailable(client.Send("{}", absl::Milliseconds(20))));
  std::thread canceller([&client] { client.Cancel(); });
  EXPECT_TRUE(absl::IsUnavailable(client.Send("{}", absl::Hours(1))));
  canceller.join();
  close(listener);
}

}  // namespace
}  // namespace somnus
