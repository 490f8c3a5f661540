#include "proto/unproven_connections.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "base/host_port.h"

namespace somnus {
namespace {

// One text for an address and a port, however the address is written; an IPv4 address equals its IPv6 form.
std::string Key(const in6_addr& address, uint16_t port) {
  return absl::StrCat(
      absl::string_view(reinterpret_cast<const char*>(address.s6_addr), sizeof(address.s6_addr)), ":", port);
}

in6_addr Mapped(const in_addr& address) {
  in6_addr mapped = {};
  mapped.s6_addr[10] = mapped.s6_addr[11] = 0xff;
  memcpy(&mapped.s6_addr[12], &address, sizeof(address));
  return mapped;
}

// Empty: the other side of the socket has no IP address, or the connection has ended.
std::string PeerKey(int fd) {
  sockaddr_storage peer = {};
  socklen_t size = sizeof(peer);
  if (getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &size) != 0) return "";
  if (peer.ss_family == AF_INET6) {
    const auto& v6 = reinterpret_cast<const sockaddr_in6&>(peer);
    return Key(v6.sin6_addr, ntohs(v6.sin6_port));
  }
  if (peer.ss_family != AF_INET) return "";
  const auto& v4 = reinterpret_cast<const sockaddr_in&>(peer);
  return Key(Mapped(v4.sin_addr), ntohs(v4.sin_port));
}

// `peer`: "ipv4:10.0.0.1:4000" or "ipv6:[fd00::1]:4000", whose brackets gRPC may write as %5B and %5D.
std::string PeerKey(absl::string_view peer) {
  if (!absl::ConsumePrefix(&peer, "ipv4:") && !absl::ConsumePrefix(&peer, "ipv6:")) return "";
  const std::optional<HostPort> parts =
      SplitHostPort(absl::StrReplaceAll(peer, {{"%5B", "["}, {"%5D", "]"}, {"%5b", "["}, {"%5d", "]"}}));
  if (!parts.has_value()) return "";
  const auto port = static_cast<uint16_t>(atoi(parts->port.c_str()));
  in_addr v4 = {};
  if (inet_pton(AF_INET, parts->host.c_str(), &v4) == 1) return Key(Mapped(v4), port);
  in6_addr v6 = {};
  const std::string host = parts->host.substr(0, parts->host.find('%'));  // without the interface
  return inet_pton(AF_INET6, host.c_str(), &v6) == 1 ? Key(v6, port) : "";
}

class Prover : public grpc::experimental::Interceptor {
 public:
  Prover(UnprovenConnections* connections, grpc::experimental::ServerRpcInfo* call)
      : connections_(*connections), call_(*call) {}

  void Intercept(grpc::experimental::InterceptorBatchMethods* methods) override {
    using Point = grpc::experimental::InterceptionHookPoints;
    if (methods->QueryInterceptionHookPoint(Point::POST_RECV_INITIAL_METADATA))
      connections_.Prove(call_.server_context()->peer());
    methods->Proceed();
  }

 private:
  UnprovenConnections& connections_;
  grpc::experimental::ServerRpcInfo& call_;
};

class ProverFactory : public grpc::experimental::ServerInterceptorFactoryInterface {
 public:
  explicit ProverFactory(std::shared_ptr<UnprovenConnections> connections)
      : connections_(std::move(connections)) {}

  grpc::experimental::Interceptor* CreateServerInterceptor(grpc::experimental::ServerRpcInfo* call) override {
    return new Prover(connections_.get(), call);
  }

 private:
  const std::shared_ptr<UnprovenConnections> connections_;
};

}  // namespace

UnprovenConnections::UnprovenConnections(int most, absl::Duration handshake_time, MonotonicClock now)
    : most_(static_cast<size_t>(std::max(most, 1))), handshake_time_(handshake_time), now_(std::move(now)) {}

UnprovenConnections::~UnprovenConnections() {
  absl::MutexLock lock(&mu_);
  for (const Connection& connection : connections_) close(connection.fd);
}

bool UnprovenConnections::Add(int fd) {
  std::string peer = PeerKey(fd);
  if (peer.empty()) return false;
  Sweep();
  absl::MutexLock lock(&mu_);
  bool closed = connections_.size() >= most_ && CloseOldest();
  int own = fcntl(fd, F_DUPFD_CLOEXEC, 0);
  if (own < 0 && CloseOldest()) {
    closed = true;
    own = fcntl(fd, F_DUPFD_CLOEXEC, 0);
  }
  if (own >= 0) connections_.push_back({std::move(peer), own, now_()});
  size_ = connections_.size();
  return closed;
}

bool UnprovenConnections::CloseOldest() {
  if (connections_.empty()) return false;
  // gRPC reads the connection's end, and closes its own descriptor.
  shutdown(connections_.front().fd, SHUT_RDWR);
  close(connections_.front().fd);
  connections_.pop_front();
  ++num_closed_;
  return true;
}

void UnprovenConnections::Prove(const std::string& peer) {
  if (size_.load() == 0) return;
  const std::string key = PeerKey(peer);
  absl::MutexLock lock(&mu_);
  std::erase_if(connections_, [&key](const Connection& connection) {
    if (connection.peer != key) return false;
    close(connection.fd);
    return true;
  });
  size_ = connections_.size();
}

void UnprovenConnections::Sweep() {
  if (size_.load() == 0) return;
  absl::MutexLock lock(&mu_);
  std::vector<pollfd> fds;
  for (const Connection& connection : connections_) fds.push_back({connection.fd, 0, 0});
  poll(fds.data(), fds.size(), 0);  // a connection that gRPC has ended is hung up on both sides
  const MonotonicTime now = now_();
  size_t i = 0;
  std::erase_if(connections_, [&](const Connection& connection) {
    const bool ended = (fds[i++].revents & (POLLHUP | POLLERR)) != 0;
    if (!ended && now - connection.since <= handshake_time_) return false;
    close(connection.fd);
    return true;
  });
  size_ = connections_.size();
}

void ProveByCalls(const std::shared_ptr<UnprovenConnections>& connections, grpc::ServerBuilder* builder) {
  std::vector<std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>> factories;
  factories.push_back(std::make_unique<ProverFactory>(connections));
  builder->experimental().SetInterceptorCreators(std::move(factories));
}

}  // namespace somnus
