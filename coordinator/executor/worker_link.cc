#include "coordinator/executor/worker_link.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/limits.h"

namespace somnus {
namespace {

std::shared_ptr<grpc::Channel> Dial(const std::string& address, const ClusterTrust& trust) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(kMaxWorkerMessageBytes);
  arguments.SetMaxSendMessageSize(kMaxWorkerMessageBytes);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  return grpc::CreateCustomChannel(address, trust.Dialer(address), arguments);
}

}  // namespace

WorkerLink MakeWorkerLink(size_t rank, WorkerEndpoint endpoint, const ClusterTrust& trust) {
  WorkerLink worker;
  worker.name = absl::StrCat("rank ", rank, " (pid ", endpoint.pid, ")");
  worker.channel = Dial(endpoint.address, trust);
  worker.stub = v1::WorkerService::NewStub(worker.channel);
  worker.endpoint = std::move(endpoint);
  return worker;
}

}  // namespace somnus
