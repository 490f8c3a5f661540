#include "coordinator/api/grpc_services.h"

#include <google/protobuf/message.h>
#include <google/protobuf/unknown_field_set.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/resource_quota.h>

#include <algorithm>
#include <utility>

#include "base/cpus.h"
#include "coordinator/api/control_service.h"
#include "coordinator/api/inference_service.h"
#include "coordinator/api/model_slot.h"
#include "coordinator/api/request_decoding.h"
#include "coordinator/metrics/metrics.h"

namespace somnus {
namespace {

constexpr int kMaxQueues = 4;      // on which calls arrive; each has one or two threads that wait for them
constexpr int kSpareThreads = 32;  // for those, for ControlService and for calls that are refused
constexpr size_t kBaseBytes = 64 << 20;  // for connections and calls, without their messages

class GrpcServicesImpl : public GrpcServices {
 public:
  GrpcServicesImpl(GrpcServicesOptions options, std::shared_ptr<Metrics> metrics)
      : limits_(options.limits),
        inference_(&slot_, std::move(metrics), options.api_key, options.limits),
        control_(&slot_, std::move(options)) {}

  void RegisterTo(grpc::ServerBuilder* builder) override {
    builder->RegisterService(&inference_);
    builder->RegisterService(&control_);
    std::vector<std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>> interceptors;
    interceptors.push_back(NameUndecodableRequests());
    builder->experimental().SetInterceptorCreators(std::move(interceptors));
    grpc::ResourceQuota quota("somnus");
    quota.Resize(kBaseBytes + static_cast<size_t>(limits_.max_buffered_body_bytes));
    quota.SetMaxThreads(limits_.max_open_calls + kSpareThreads);
    builder->SetResourceQuota(quota);
    builder->SetSyncServerOption(grpc::ServerBuilder::SyncServerOption::NUM_CQS,
                                 std::min(kMaxQueues, NumAllowedCpus()));
  }
  void SetModel(ServedModel model) override { slot_.Set(std::move(model)); }

 private:
  const ApiLimits limits_;
  ModelSlot slot_;
  InferenceServiceImpl inference_;
  ControlServiceImpl control_;
};

}  // namespace

std::unique_ptr<GrpcServices> GrpcServices::Create(GrpcServicesOptions options,
                                                   std::shared_ptr<Metrics> metrics) {
  return std::make_unique<GrpcServicesImpl>(std::move(options), std::move(metrics));
}

}  // namespace somnus
