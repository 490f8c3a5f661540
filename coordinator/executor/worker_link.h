#pragma once
// What the executor holds of one rank: where it is, its channel and its stub. Does not change once made.

#include <grpcpp/grpcpp.h>

#include <cstddef>
#include <memory>
#include <string>

#include "coordinator/executor/grpc_executor.h"
#include "proto/worker.grpc.pb.h"

namespace somnus {

struct WorkerLink {
  WorkerEndpoint endpoint;
  std::string name;  // "rank 1 (pid 77)"
  std::shared_ptr<grpc::Channel> channel;
  std::unique_ptr<v1::WorkerService::Stub> stub;
};

// Starts to dial.
WorkerLink MakeWorkerLink(size_t rank, WorkerEndpoint endpoint);

}  // namespace somnus
