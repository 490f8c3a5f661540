#pragma once
// ControlService over a served model. Sync gRPC: a call blocks its thread until all ranks have replied.
// Thread safe. Internal to coordinator/grpc.

#include <string>

#include "base/monotonic.h"
#include "coordinator/grpc/grpc_services.h"
#include "coordinator/grpc/transition_watch.h"
#include "coordinator/grpc/update_weights_call.h"
#include "coordinator/openai/model_table.h"
#include "coordinator/operators/call_bounds.h"
#include "proto/control.grpc.pb.h"

namespace somnus {

class ControlServiceImpl final : public v1::ControlService::Service {
 public:
  using DirectUpdateStream =
      grpc::ServerReaderWriter<v1::DirectUpdateWeightsResponse, v1::UpdateWeightsRequest>;

  // `models` must outlive the service.
  ControlServiceImpl(const ModelTable* models, GrpcServicesOptions options);

  grpc::Status GetStatus(grpc::ServerContext* context, const v1::GetStatusRequest* request,
                         v1::GetStatusResponse* response) override;
  grpc::Status ListModelStatus(grpc::ServerContext* context, const v1::ListModelStatusRequest* request,
                               v1::ListModelStatusResponse* response) override;
  grpc::Status Sleep(grpc::ServerContext* context, const v1::SleepRequest* request,
                     v1::SleepResponse* response) override;
  grpc::Status WakeUp(grpc::ServerContext* context, const v1::WakeUpRequest* request,
                      v1::WakeUpResponse* response) override;
  grpc::Status WatchTransition(grpc::ServerContext* context, const v1::WatchTransitionRequest* request,
                               grpc::ServerWriter<v1::WatchTransitionResponse>* writer) override;
  grpc::Status Pause(grpc::ServerContext* context, const v1::PauseRequest* request,
                     v1::PauseResponse* response) override;
  grpc::Status Resume(grpc::ServerContext* context, const v1::ResumeRequest* request,
                      v1::ResumeResponse* response) override;
  grpc::Status ResetPrefixCache(grpc::ServerContext* context, const v1::ResetPrefixCacheRequest* request,
                                v1::ResetPrefixCacheResponse* response) override;
  grpc::Status AbortRequests(grpc::ServerContext* context, const v1::AbortRequestsRequest* request,
                             v1::AbortRequestsResponse* response) override;
  grpc::Status Revive(grpc::ServerContext* context, const v1::ReviveRequest* request,
                      v1::ReviveResponse* response) override;
  grpc::Status Roll(grpc::ServerContext* context, const v1::RollRequest* request,
                    v1::RollResponse* response) override;
  grpc::Status ReloadWeights(grpc::ServerContext* context, const v1::ReloadWeightsRequest* request,
                             v1::ReloadWeightsResponse* response) override;
  grpc::Status UpdateWeights(grpc::ServerContext* context,
                             grpc::ServerReader<v1::UpdateWeightsRequest>* reader,
                             v1::UpdateWeightsResponse* response) override;
  grpc::Status DirectUpdateWeights(grpc::ServerContext* context, DirectUpdateStream* stream) override;
  grpc::Status LoadLoraAdapter(grpc::ServerContext* context, const v1::LoadLoraAdapterRequest* request,
                               v1::LoadLoraAdapterResponse* response) override;
  grpc::Status UnloadLoraAdapter(grpc::ServerContext* context, const v1::UnloadLoraAdapterRequest* request,
                                 v1::UnloadLoraAdapterResponse* response) override;
  grpc::Status AbortCall(grpc::ServerContext* context, const v1::AbortCallRequest* request,
                         v1::AbortCallResponse* response) override;

 private:
  struct OperatorCall;
  // Checks the key and the fields of a call that may wait, finds the call's model, and takes a place for
  // calls of its kind.
  template <typename Request>
  grpc::Status Open(grpc::ServerContext* context, const Request& request, OperatorCall* call);
  grpc::Status Update(grpc::ServerContext* context, const UpdateMessages& messages,
                      v1::UpdateWeightsResponse* response);
  // The model of that name, which may be empty where only one model is served.
  grpc::Status Find(const std::string& name, SharedModel* model) const;

  const ModelTable* const models_;
  const GrpcServicesOptions options_;
  const MonotonicTime start_;
  TransitionWatch transition_watch_;
  CallBounds call_bounds_;
};

}  // namespace somnus
