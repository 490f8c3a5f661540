#pragma once
// The executor's handle of one worker: address, channel and stub. A value; copies share the channel, so that
// a worker keeps its connection when a new epoch begins.

#include <grpcpp/grpcpp.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "proto/cluster_trust.h"
#include "proto/worker.grpc.pb.h"

namespace somnus {

// Where a worker's WorkerService listens.
struct WorkerEndpoint {
  std::string address;  // "unix:/path" or "host:port"
  std::string host;
  int32_t pid = 0;
  v1::DeviceType device_type = v1::DEVICE_TYPE_CPU;
  std::string cpus = {};  // as in RegisterRequest
};

struct WorkerLink {
  WorkerEndpoint endpoint;
  std::string name;  // "rank 1 (pid 77)"
  std::shared_ptr<grpc::Channel> channel;
  std::shared_ptr<v1::WorkerService::Stub> stub;
};

// Starts to dial. `trust`: how both sides know each other; by default not at all.
WorkerLink MakeWorkerLink(size_t rank, WorkerEndpoint endpoint, const ClusterTrust& trust = ClusterTrust());

}  // namespace somnus
