#include "coordinator/api/grpc_services.h"

#include <grpcpp/grpcpp.h>

#include <utility>

#include "absl/time/clock.h"
#include "base/memory_tags.h"
#include "coordinator/api/inference_service.h"
#include "coordinator/metrics/metrics.h"
#include "proto/control.grpc.pb.h"
#include "proto/status.h"

namespace somnus {
namespace {

v1::EngineState ToProto(EngineState state) {
  switch (state) {
    case EngineState::kLoading:
      return v1::ENGINE_STATE_LOADING;
    case EngineState::kAwake:
      return v1::ENGINE_STATE_AWAKE;
    case EngineState::kAsleep:
      return v1::ENGINE_STATE_ASLEEP;
    case EngineState::kDraining:
      return v1::ENGINE_STATE_DRAINING;
    case EngineState::kFailed:
      return v1::ENGINE_STATE_FAILED;
  }
  return v1::ENGINE_STATE_UNSPECIFIED;
}

grpc::Status Loading() { return {grpc::StatusCode::UNAVAILABLE, "the model is loading"}; }

class ControlServiceImpl final : public v1::ControlService::Service {
 public:
  ControlServiceImpl(const ModelSlot* slot, GrpcServicesOptions options)
      : slot_(slot), options_(std::move(options)), start_(absl::Now()) {}

  grpc::Status GetStatus(grpc::ServerContext* context, const v1::GetStatusRequest*,
                         v1::GetStatusResponse* response) override {
    if (grpc::Status status = CheckKey(*context, options_.api_key); !status.ok()) return status;
    response->set_version(options_.version);
    response->set_uptime_s(absl::ToDoubleSeconds(absl::Now() - start_));
    response->set_state(v1::ENGINE_STATE_LOADING);
    if (options_.rank_status) {
      for (v1::RankStatus& rank : options_.rank_status()) *response->add_ranks() = std::move(rank);
    }
    const std::shared_ptr<const ServedModel> model = slot_->Get();
    if (model == nullptr) return grpc::Status::OK;
    const EngineStats stats = model->engine->Stats();
    response->set_model(model->name);
    response->set_state(ToProto(stats.state));
    response->set_sleep_level(stats.sleep_level);
    response->set_error(stats.error);
    response->set_num_requests_running(stats.num_running);
    response->set_num_requests_waiting(stats.num_waiting);
    response->set_total_blocks(stats.total_blocks);
    response->set_free_blocks(stats.free_blocks);
    response->set_max_model_len(model->engine->max_model_len());
    response->set_kv_cache_dtype(model->kv_cache_dtype);
    return grpc::Status::OK;
  }

  grpc::Status Sleep(grpc::ServerContext* context, const v1::SleepRequest* request,
                     v1::SleepResponse* response) override {
    if (grpc::Status status = CheckKey(*context, options_.api_key); !status.ok()) return status;
    const std::shared_ptr<const ServedModel> model = slot_->Get();
    if (model == nullptr) return Loading();
    if (request->level() < 0 || request->level() > 2) {
      return {grpc::StatusCode::INVALID_ARGUMENT, "level: must be 0, 1 or 2"};
    }
    const absl::Time start = absl::Now();
    const auto freed = model->engine->Sleep(request->level());
    if (!freed.ok()) return ToGrpcStatus(freed.status());
    response->mutable_freed_bytes_by_tag()->insert(freed->begin(), freed->end());
    response->set_seconds(absl::ToDoubleSeconds(absl::Now() - start));
    return grpc::Status::OK;
  }

  grpc::Status WakeUp(grpc::ServerContext* context, const v1::WakeUpRequest* request,
                      v1::WakeUpResponse* response) override {
    if (grpc::Status status = CheckKey(*context, options_.api_key); !status.ok()) return status;
    const std::shared_ptr<const ServedModel> model = slot_->Get();
    if (model == nullptr) return Loading();
    for (const std::string& tag : request->tags()) {
      if (!IsMemoryTag(tag)) {
        return {grpc::StatusCode::INVALID_ARGUMENT, absl::StrCat("tags: are ", kMemoryTagNames)};
      }
    }
    const absl::Time start = absl::Now();
    const auto mapped = model->engine->WakeUp({request->tags().begin(), request->tags().end()});
    if (!mapped.ok()) return ToGrpcStatus(mapped.status());
    response->mutable_mapped_bytes_by_tag()->insert(mapped->begin(), mapped->end());
    response->set_seconds(absl::ToDoubleSeconds(absl::Now() - start));
    return grpc::Status::OK;
  }

 private:
  const ModelSlot* const slot_;
  const GrpcServicesOptions options_;
  const absl::Time start_;
};

class GrpcServicesImpl : public GrpcServices {
 public:
  GrpcServicesImpl(GrpcServicesOptions options, std::shared_ptr<Metrics> metrics)
      : inference_(&slot_, std::move(metrics), options.api_key, options.limits),
        control_(&slot_, std::move(options)) {}

  void RegisterTo(grpc::ServerBuilder* builder) override {
    builder->RegisterService(&inference_);
    builder->RegisterService(&control_);
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
