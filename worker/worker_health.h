#pragma once
// Whether the worker's threads live, for probes of the process: grpc.health.v1.Health, the log, systemd.
//
// The worker is SERVING while all its threads give signs of life (base/heartbeat.h), also before it has
// registered, while it loads and while it sleeps: whether requests are served is the coordinator's to say. A
// probe may therefore restart a worker that is NOT_SERVING.
//
// Owns a thread, and the listener for probes where there is one. Thread safe, but for construction.

#include <grpcpp/generic/async_generic_service.h>

#include <memory>
#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "base/heartbeat.h"
#include "base/monotonic.h"
#include "proto/grpc_listener.h"

namespace somnus {

class WorkerHealth {
 public:
  // To be called before gRPC servers that answer health calls are built.
  static void Enable();
  // Tells the health service of `worker`, the worker's own listener (borrowed). `address`: "host:port" or
  // "unix:/path" of a listener that answers health calls of everybody, without TLS, and nothing else; empty:
  // none. Unavailable: the process cannot listen there.
  static absl::StatusOr<std::unique_ptr<WorkerHealth>> Start(GrpcListener* worker, const std::string& address,
                                                             int max_handshakes,
                                                             const Heartbeats* heartbeats);
  ~WorkerHealth();
  WorkerHealth(const WorkerHealth&) = delete;

  int port() const { return probes_ == nullptr ? 0 : probes_->port(); }  // of the listener for probes

 private:
  WorkerHealth(GrpcListener* worker, std::unique_ptr<grpc::CallbackGenericService> nothing,
               std::unique_ptr<GrpcListener> probes, const Heartbeats* heartbeats);

  void Run() const;
  void Tell(bool serving) const;

  GrpcListener& worker_;
  const std::unique_ptr<grpc::CallbackGenericService> nothing_;  // served by probes_ beside health
  const std::unique_ptr<GrpcListener> probes_;                   // null: none
  const Heartbeats& heartbeats_;
  StopSignal stop_;
  std::thread thread_;
};

}  // namespace somnus
