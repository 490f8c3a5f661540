#include "coordinator/api/grpc_services.h"

#include <google/protobuf/message.h>
#include <google/protobuf/unknown_field_set.h>
#include <grpcpp/grpcpp.h>

#include <utility>

#include "coordinator/api/control_service.h"
#include "coordinator/api/inference_service.h"
#include "coordinator/api/model_slot.h"
#include "coordinator/api/request_decoding.h"
#include "coordinator/metrics/metrics.h"

namespace somnus {
namespace {

class GrpcServicesImpl : public GrpcServices {
 public:
  GrpcServicesImpl(GrpcServicesOptions options, std::shared_ptr<Metrics> metrics)
      : inference_(&slot_, std::move(metrics), options.api_key, options.limits),
        control_(&slot_, std::move(options)) {}

  void RegisterTo(grpc::ServerBuilder* builder) override {
    builder->RegisterService(&inference_);
    builder->RegisterService(&control_);
    std::vector<std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>> interceptors;
    interceptors.push_back(NameUndecodableRequests());
    builder->experimental().SetInterceptorCreators(std::move(interceptors));
  }
  void SetModel(ServedModel model) override { slot_.Set(std::move(model)); }

 private:
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
