#pragma once
// What the executor holds of one rank: its channel, its stub and its step stream.

#include <grpcpp/grpcpp.h>

#include <cstddef>
#include <memory>
#include <string>

#include "coordinator/executor/grpc_executor.h"
#include "proto/worker.grpc.pb.h"

namespace somnus {

using StepStream = grpc::ClientReaderWriter<v1::StepRequest, v1::StepReply>;

// Members are destroyed in reverse: the stream before what it runs over.
struct WorkerLink {
  WorkerEndpoint endpoint;
  std::string name;  // "rank 1 (pid 77)"
  std::shared_ptr<grpc::Channel> channel;
  std::unique_ptr<v1::WorkerService::Stub> stub;
  std::unique_ptr<grpc::ClientContext> step_context;  // null until the stream is opened, as `steps` is
  std::unique_ptr<StepStream> steps;
};

// Starts to dial.
WorkerLink MakeWorkerLink(size_t rank, WorkerEndpoint endpoint, const GrpcExecutorOptions& options);

}  // namespace somnus
