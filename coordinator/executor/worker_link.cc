#include "coordinator/executor/worker_link.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace somnus {
namespace {

std::shared_ptr<grpc::Channel> Dial(const std::string& address, const GrpcExecutorOptions& options) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(options.max_message_bytes);
  arguments.SetMaxSendMessageSize(options.max_message_bytes);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
}

}  // namespace

WorkerLink MakeWorkerLink(size_t rank, WorkerEndpoint endpoint, const GrpcExecutorOptions& options) {
  WorkerLink worker;
  worker.name = absl::StrCat("rank ", rank, " (pid ", endpoint.pid, ")");
  worker.channel = Dial(endpoint.address, options);
  worker.stub = v1::WorkerService::NewStub(worker.channel);
  worker.endpoint = std::move(endpoint);
  return worker;
}

}  // namespace somnus
