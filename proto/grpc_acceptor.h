#pragma once
// A listener of a gRPC server that outlives a lack of descriptors.
//
// gRPC's own listeners (1.51) give up for good at the first accept that fails, and have no bound on their
// connections. This listener accepts on a thread of its own, keeps descriptors back (base/descriptors.h), and
// tries again after a lack of descriptors.
//
//   ASSIGN_OR_RETURN(auto acceptor, GrpcAcceptor::Open("127.0.0.1:0", DescriptorUse::kClients));
//   acceptor->AddTo(&builder, credentials);
//   auto server = builder.BuildAndStart();
//   RETURN_IF_ERROR(acceptor->Start());
//   ...
//   acceptor->Stop();                      // before the server is shut down
//
// Not thread safe, but for num_refused and num_dropped. Owns the sockets and its thread; the server outlives
// Stop.

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "base/descriptors.h"
#include "base/monotonic.h"
#include "proto/unproven_connections.h"

namespace somnus {

class GrpcAcceptor {
 public:
  // `address`: "host:port" or "unix:/path". The host may have several addresses, and a wildcard stands for
  // all IPv4 and IPv6 addresses; port 0 stands for any free port. A Unix socket takes the place of a
  // socket that an earlier process has left, and only this process's user can connect. Unavailable says which
  // address cannot be bound, and why.
  // `max_handshakes`: at most so many connections may be without a call at once (unproven_connections.h), and
  // fewer where the process may have few descriptors; 0: any number. Of a TCP address alone.
  static absl::StatusOr<std::unique_ptr<GrpcAcceptor>> Open(const std::string& address, DescriptorUse use,
                                                            int max_handshakes = 0);
  ~GrpcAcceptor();
  GrpcAcceptor(const GrpcAcceptor&) = delete;

  int port() const { return port_; }  // 0 for a Unix socket
  // Hands all connections to the server that `builder` makes.
  void AddTo(grpc::ServerBuilder* builder, const std::shared_ptr<grpc::ServerCredentials>& credentials);
  // From now on connections are accepted, first the connections that have waited since Open.
  // ResourceExhausted: no thread can be started.
  absl::Status Start();
  // No connection is accepted any more, and the port or the path is free. Idempotent.
  void Stop();
  // The number of connections that gave way to a further connection.
  int64_t num_dropped() const { return unproven_ == nullptr ? 0 : unproven_->num_closed(); }
  // The number of connections that were closed at once for lack of a descriptor within the bound.
  int64_t num_refused() const { return num_refused_.load(); }

 private:
  GrpcAcceptor(std::string address, int64_t bound, int max_handshakes);

  absl::Status Bind();
  absl::Status BindSocket(const std::string& path);
  void Run();
  // Returns whether a further accept may succeed at once.
  bool AcceptOne(int listener);
  void NoteShortage(const char* what);
  void NoteDrop();

  const std::string address_;
  const int64_t bound_;  // descriptors from this number on are kept back
  int port_ = 0;
  std::vector<int> listeners_;
  std::string socket_path_;  // to remove; empty for TCP
  int wake_ = -1;
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> server_;
  std::thread thread_;
  bool short_ = false;  // the log has told the lack of descriptors
  std::atomic<int64_t> num_refused_{0};
  const int max_handshakes_;
  std::shared_ptr<UnprovenConnections> unproven_;  // shared with the server; null: no bound
  MonotonicTime next_drop_line_ = -absl::InfiniteDuration();
};

}  // namespace somnus
