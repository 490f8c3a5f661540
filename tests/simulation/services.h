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
      const grpc::Status status = grpc::UnaryCall(*channel_, "Register", context, request, response);
      if (status.ok() && response->action() == REGISTER_ACTION_ADOPT)
        network().NoteAdopted(coordinator(), worker(), request.snapshot().group_epoch());
      return status;
    }
    grpc::Status Heartbeat(grpc::ClientContext* context, const HeartbeatRequest& request,
                           HeartbeatResponse* response) {
      const grpc::Status status = grpc::UnaryCall(*channel_, "Heartbeat", context, request, response);
      if (status.ok() && !response->known())
        network().NoteUnknown(coordinator(), worker(), request.group_epoch());
      return status;
    }

   private:
    static simulation::Network& network() { return simulation::Network::current(); }
    static int worker() { return simulation::World::current()->current_process(); }
    int coordinator() const { return channel_->connection()->server; }

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

// Every unary call of WorkerService: name, request, response.
#define SOMNUS_WORKER_CALLS(CALL)                                                 \
  CALL(Fence, FenceRequest, FenceResponse)                                        \
  CALL(NewGroup, NewGroupRequest, NewGroupResponse)                               \
  CALL(JoinGroup, JoinGroupRequest, JoinGroupResponse)                            \
  CALL(Profile, ProfileRequest, ProfileResponse)                                  \
  CALL(AllocateKvCache, AllocateKvCacheRequest, AllocateKvCacheResponse)          \
  CALL(Plan, PlanRequest, PlanResponse)                                           \
  CALL(Prepare, PrepareRequest, PrepareResponse)                                  \
  CALL(Commit, CommitRequest, CommitResponse)                                     \
  CALL(Abort, AbortRequest, AbortResponse)                                        \
  CALL(ResizeKvCache, ResizeKvCacheRequest, ResizeKvCacheResponse)                \
  CALL(SelfCheck, SelfCheckRequest, SelfCheckResponse)                            \
  CALL(Prefetch, PrefetchRequest, PrefetchResponse)                               \
  CALL(ReloadWeights, WorkerReloadWeightsRequest, WorkerReloadWeightsResponse)    \
  CALL(BeginWeightUpdate, BeginWeightUpdateRequest, BeginWeightUpdateResponse)    \
  CALL(FinishWeightUpdate, FinishWeightUpdateRequest, FinishWeightUpdateResponse) \
  CALL(SetAdapters, SetAdaptersRequest, SetAdaptersResponse)                      \
  CALL(ReadAdapters, ReadAdaptersRequest, ReadAdaptersResponse)                   \
  CALL(ChecksumWeights, ChecksumWeightsRequest, ChecksumWeightsResponse)          \
  CALL(GetStatus, WorkerStatusRequest, WorkerStatusResponse)                      \
  CALL(Shutdown, WorkerShutdownRequest, WorkerShutdownResponse)

struct WorkerService {
  static const char* service_full_name() { return "somnus.v1.WorkerService"; }

  class Stub {
   public:
    explicit Stub(std::shared_ptr<grpc::Channel> channel) : channel_(std::move(channel)) {}
#define SOMNUS_STUB(Name, Request, Response)                                                    \
  grpc::Status Name(grpc::ClientContext* context, const Request& request, Response* response) { \
    return grpc::UnaryCall(*channel_, #Name, context, request, response);                       \
  }
    SOMNUS_WORKER_CALLS(SOMNUS_STUB)
#undef SOMNUS_STUB
    std::unique_ptr<grpc::ClientReader<LoadModelEvent>> LoadModel(grpc::ClientContext* context,
                                                                  const LoadModelRequest& request) {
      return std::make_unique<grpc::ClientReader<LoadModelEvent>>(
          grpc::StartCall(*channel_, "LoadModel", context, grpc::Serialize(request)));
    }
    std::unique_ptr<grpc::ClientWriter<WorkerUpdateWeightsRequest>> UpdateWeights(
        grpc::ClientContext* context, WorkerUpdateWeightsResponse* response) {
      return std::make_unique<grpc::ClientWriter<WorkerUpdateWeightsRequest>>(
          grpc::StartCall(*channel_, "UpdateWeights", context),
          [response](const std::string& bytes) { return response->ParseFromString(bytes); });
    }

   private:
    const std::shared_ptr<grpc::Channel> channel_;
  };
  static std::unique_ptr<Stub> NewStub(std::shared_ptr<grpc::Channel> channel) {
    return std::make_unique<Stub>(std::move(channel));
  }

  class Service : public grpc::Service {
   public:
#define SOMNUS_METHOD(Name, Request, Response) \
  virtual grpc::Status Name(grpc::ServerContext*, const Request*, Response*) = 0;
    SOMNUS_WORKER_CALLS(SOMNUS_METHOD)
#undef SOMNUS_METHOD
    virtual grpc::Status LoadModel(grpc::ServerContext*, const LoadModelRequest*,
                                   grpc::ServerWriter<LoadModelEvent>*) = 0;
    virtual grpc::Status Execute(grpc::ServerContext*, grpc::ServerReaderWriter<StepReply, StepRequest>*) = 0;
    virtual grpc::Status UpdateWeights(grpc::ServerContext*, grpc::ServerReader<WorkerUpdateWeightsRequest>*,
                                       WorkerUpdateWeightsResponse*) = 0;

    grpc::Status Serve(const std::shared_ptr<simulation::Call>& call) override {
#define SOMNUS_SERVE(Name, Request, Response) \
  if (call->method == #Name) return simulation::ServeUnary(call, this, &Service::Name);
      SOMNUS_WORKER_CALLS(SOMNUS_SERVE)
#undef SOMNUS_SERVE
      grpc::ServerContext context(call);
      if (call->method == "LoadModel") {
        LoadModelRequest request;
        std::string bytes;
        if (!grpc::ServerReceive(call, &bytes) || !request.ParseFromString(bytes))
          return grpc::Status::CANCELLED;
        grpc::ServerWriter<LoadModelEvent> writer(call);
        return LoadModel(&context, &request, &writer);
      }
      if (call->method == "UpdateWeights") {
        grpc::ServerReader<WorkerUpdateWeightsRequest> reader(call);
        WorkerUpdateWeightsResponse response;
        grpc::Status status = UpdateWeights(&context, &reader, &response);
        if (status.ok()) grpc::ServerSend(call, grpc::Serialize(response));
        return status;
      }
      grpc::ServerReaderWriter<StepReply, StepRequest> stream(call);
      return Execute(&context, &stream);
    }
  };
};

#undef SOMNUS_WORKER_CALLS

}  // namespace somnus::v1
