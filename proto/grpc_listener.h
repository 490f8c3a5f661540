#pragma once
// A gRPC server at an address, which outlives a lack of descriptors (grpc_acceptor.h).
//
// Not thread safe. The services that the builder has must outlive the listener. The destructor ends open
// calls at once; Shutdown gives open calls time.

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "base/descriptors.h"

namespace somnus {

class GrpcListener {
 public:
  // Serves the services of `builder` at `address`, "host:port" or "unix:/path". Unavailable says why the
  // process cannot listen there. `max_handshakes`: as GrpcAcceptor::Open takes it.
  static absl::StatusOr<std::unique_ptr<GrpcListener>> Start(
      const std::string& address, DescriptorUse use,
      const std::shared_ptr<grpc::ServerCredentials>& credentials, grpc::ServerBuilder* builder,
      int max_handshakes = 0);
  virtual ~GrpcListener() = default;

  virtual int port() const = 0;  // 0 for a Unix socket
  virtual grpc::Server& server() = 0;
  // Accepts no connection any more, and ends calls that are still open at `deadline`. Idempotent.
  virtual void Shutdown(std::chrono::system_clock::time_point deadline) = 0;
};

}  // namespace somnus
