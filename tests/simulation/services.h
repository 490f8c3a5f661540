#pragma once
// The stubs and services of proto/worker.proto and proto/cluster.proto over the simulated gRPC.

#include <memory>
#include <string>
#include <utility>

#include "proto/cluster.pb.h"
#include "proto/worker.pb.h"
#include "tests/simulation/network.h"

namespace somnus::simulation {

template <typename Service, typename Request, typename Response>
grpc::Status ServeUnary(const std::shared_ptr<Call>& call, Service* service,
                        grpc::Status (Service::*method)(grpc::ServerContext*, const Request*, Response*)) {
  Request request;
  std::string bytes;
  if (!grpc::ServerReceive(call, &bytes) || !request.ParseFromString(bytes)) return grpc::Status::CANCELLED;
  grpc::ServerContext context(call);
  Response response;
  grpc::Status status = (service->*method)(&context, &request, &response);
  if (status.ok()) grpc::ServerSend(call, grpc::Serialize(response));
  return status;
}

}  // namespace somnus::simulation

namespace somnus::v1 {

struct ClusterService {
  class Stub {
   public:
    explicit Stub(std::shared_ptr<grpc::Channel> channel) : channel_(std::move(channel)) {}
    grpc::Status Register(grpc::ClientContext* context, const RegisterRequest& request,
                          RegisterResponse* response) {
      return grpc::UnaryCall(*channel_, "Register", context, request, response);
    }
    grpc::Status Heartbeat(grpc::ClientContext* context, const HeartbeatRequest& request,
                           HeartbeatResponse* response) {
      const grpc::Status status = grpc::UnaryCall(*channel_, "Heartbeat", context, request, response);
      if (status.ok() && !response->known() && request.group_epoch() > 0)
        simulation::Network::current().NoteGivenUp(simulation::World::current()->current_process());
      return status;
    }

   private:
    const std::shared_ptr<grpc::Channel> channel_;
  };
  static std::unique_ptr<Stub> NewStub(std::shared_ptr<grpc::Channel> channel) {
    return std::make_unique<Stub>(std::move(channel));
  }

  class Service : public grpc::Service {
   public:
    virtual grpc::Status Register(grpc::ServerContext*, const RegisterRequest*, RegisterResponse*) = 0;
    virtual grpc::Status Heartbeat(grpc::ServerContext*, const HeartbeatRequest*, HeartbeatResponse*) = 0;

    grpc::Status Serve(const std::shared_ptr<simulation::Call>& call) override {
      if (call->method == "Register") return simulation::ServeUnary(call, this, &Service::Register);
      return simulation::ServeUnary(call, this, &Service::Heartbeat);
    }
  };
};

struct WorkerService {
  class Stub {
   public:
    explicit Stub(std::shared_ptr<grpc::Channel> channel) : channel_(std::move(channel)) {}
    grpc::Status Fence(grpc::ClientContext* context, const FenceRequest& request, FenceResponse* response) {
      return grpc::UnaryCall(*channel_, "Fence", context, request, response);
    }
    grpc::Status NewGroup(grpc::ClientContext* context, const NewGroupRequest& request,
                          NewGroupResponse* response) {
      return grpc::UnaryCall(*channel_, "NewGroup", context, request, response);
    }
    grpc::Status JoinGroup(grpc::ClientContext* context, const JoinGroupRequest& request,
                           JoinGroupResponse* response) {
      return grpc::UnaryCall(*channel_, "JoinGroup", context, request, response);
    }
    grpc::Status Profile(grpc::ClientContext* context, const ProfileRequest& request,
                         ProfileResponse* response) {
      return grpc::UnaryCall(*channel_, "Profile", context, request, response);
    }
    grpc::Status AllocateKvCache(grpc::ClientContext* context, const AllocateKvCacheRequest& request,
                                 AllocateKvCacheResponse* response) {
      return grpc::UnaryCall(*channel_, "AllocateKvCache", context, request, response);
    }
    grpc::Status Plan(grpc::ClientContext* context, const PlanRequest& request, PlanResponse* response) {
      return grpc::UnaryCall(*channel_, "Plan", context, request, response);
    }
    grpc::Status Prepare(grpc::ClientContext* context, const PrepareRequest& request,
                         PrepareResponse* response) {
      return grpc::UnaryCall(*channel_, "Prepare", context, request, response);
    }
    grpc::Status Commit(grpc::ClientContext* context, const CommitRequest& request,
                        CommitResponse* response) {
      return grpc::UnaryCall(*channel_, "Commit", context, request, response);
    }
    grpc::Status Abort(grpc::ClientContext* context, const AbortRequest& request, AbortResponse* response) {
      return grpc::UnaryCall(*channel_, "Abort", context, request, response);
    }
    grpc::Status GetStatus(grpc::ClientContext* context, const WorkerStatusRequest& request,
                           WorkerStatusResponse* response) {
      return grpc::UnaryCall(*channel_, "GetStatus", context, request, response);
    }
    grpc::Status Shutdown(grpc::ClientContext* context, const WorkerShutdownRequest& request,
                          WorkerShutdownResponse* response) {
      return grpc::UnaryCall(*channel_, "Shutdown", context, request, response);
    }
    std::unique_ptr<grpc::ClientReader<LoadModelEvent>> LoadModel(grpc::ClientContext* context,
                                                                  const LoadModelRequest& request) {
      return std::make_unique<grpc::ClientReader<LoadModelEvent>>(
          grpc::StartCall(*channel_, "LoadModel", context, grpc::Serialize(request)));
    }
    std::unique_ptr<grpc::ClientAsyncReaderWriter<StepRequest, StepReply>> PrepareAsyncExecute(
        grpc::ClientContext* context, grpc::CompletionQueue* queue) {
      return std::make_unique<grpc::ClientAsyncReaderWriter<StepRequest, StepReply>>(*channel_, "Execute",
                                                                                     context, queue);
    }

   private:
    const std::shared_ptr<grpc::Channel> channel_;
  };
  static std::unique_ptr<Stub> NewStub(std::shared_ptr<grpc::Channel> channel) {
    return std::make_unique<Stub>(std::move(channel));
  }

  class Service : public grpc::Service {
   public:
    virtual grpc::Status Fence(grpc::ServerContext*, const FenceRequest*, FenceResponse*) = 0;
    virtual grpc::Status NewGroup(grpc::ServerContext*, const NewGroupRequest*, NewGroupResponse*) = 0;
    virtual grpc::Status JoinGroup(grpc::ServerContext*, const JoinGroupRequest*, JoinGroupResponse*) = 0;
    virtual grpc::Status Profile(grpc::ServerContext*, const ProfileRequest*, ProfileResponse*) = 0;
    virtual grpc::Status AllocateKvCache(grpc::ServerContext*, const AllocateKvCacheRequest*,
                                         AllocateKvCacheResponse*) = 0;
    virtual grpc::Status Plan(grpc::ServerContext*, const PlanRequest*, PlanResponse*) = 0;
    virtual grpc::Status Prepare(grpc::ServerContext*, const PrepareRequest*, PrepareResponse*) = 0;
    virtual grpc::Status Commit(grpc::ServerContext*, const CommitRequest*, CommitResponse*) = 0;
    virtual grpc::Status Abort(grpc::ServerContext*, const AbortRequest*, AbortResponse*) = 0;
    virtual grpc::Status GetStatus(grpc::ServerContext*, const WorkerStatusRequest*,
                                   WorkerStatusResponse*) = 0;
    virtual grpc::Status Shutdown(grpc::ServerContext*, const WorkerShutdownRequest*,
                                  WorkerShutdownResponse*) = 0;
    virtual grpc::Status LoadModel(grpc::ServerContext*, const LoadModelRequest*,
                                   grpc::ServerWriter<LoadModelEvent>*) = 0;
    virtual grpc::Status Execute(grpc::ServerContext*, grpc::ServerReaderWriter<StepReply, StepRequest>*) = 0;

    grpc::Status Serve(const std::shared_ptr<simulation::Call>& call) override {
      if (call->method == "Fence") return simulation::ServeUnary(call, this, &Service::Fence);
      if (call->method == "NewGroup") return simulation::ServeUnary(call, this, &Service::NewGroup);
      if (call->method == "JoinGroup") return simulation::ServeUnary(call, this, &Service::JoinGroup);
      if (call->method == "Profile") return simulation::ServeUnary(call, this, &Service::Profile);
      if (call->method == "AllocateKvCache")
        return simulation::ServeUnary(call, this, &Service::AllocateKvCache);
      if (call->method == "Plan") return simulation::ServeUnary(call, this, &Service::Plan);
      if (call->method == "Prepare") return simulation::ServeUnary(call, this, &Service::Prepare);
      if (call->method == "Commit") return simulation::ServeUnary(call, this, &Service::Commit);
      if (call->method == "Abort") return simulation::ServeUnary(call, this, &Service::Abort);
      if (call->method == "GetStatus") return simulation::ServeUnary(call, this, &Service::GetStatus);
      if (call->method == "Shutdown") return simulation::ServeUnary(call, this, &Service::Shutdown);
      grpc::ServerContext context(call);
      if (call->method == "LoadModel") {
        LoadModelRequest request;
        std::string bytes;
        if (!grpc::ServerReceive(call, &bytes) || !request.ParseFromString(bytes))
          return grpc::Status::CANCELLED;
        grpc::ServerWriter<LoadModelEvent> writer(call);
        return LoadModel(&context, &request, &writer);
      }
      grpc::ServerReaderWriter<StepReply, StepRequest> stream(call);
      return Execute(&context, &stream);
    }
  };
};

}  // namespace somnus::v1
