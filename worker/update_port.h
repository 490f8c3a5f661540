#pragma once
// A listener of the worker for one direct update of the weights (proto/weights.proto): a trainer, who is no
// member of the cluster, sends its chunks there. Nothing but an update's chunks can be sent to it.

#include <grpcpp/server_context.h>
#include <grpcpp/support/status.h>
#include <grpcpp/support/sync_stream.h>

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "proto/worker.pb.h"

namespace somnus {

class ListenAddress;

class UpdatePort {
 public:
  // Cancels the streams that are open, and returns once they have ended.
  virtual ~UpdatePort() = default;
  // The address and the certificate of the port.
  virtual const v1::UpdatePort& place() const = 0;
};

// Serves one stream, on a thread of its own.
using ServeUpdate =
    std::function<grpc::Status(grpc::ServerContext*, grpc::ServerReader<v1::WorkerUpdateWeightsRequest>*,
                               v1::WorkerUpdateWeightsResponse*)>;
// Opens a port that lets calls with `token` through to `serve`.
using OpenUpdatePort =
    std::function<absl::StatusOr<std::unique_ptr<UpdatePort>>(const std::string& token, ServeUpdate serve)>;

// At most one is open at a time. Each is beside `address`, which is borrowed. Clients are told to dial
// `host`; empty: the address itself. Unavailable: nothing can be bound there.
OpenUpdatePort UpdatePortsBeside(const ListenAddress* address, std::string host);

}  // namespace somnus
