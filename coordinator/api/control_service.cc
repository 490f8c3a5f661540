#include "coordinator/api/control_service.h"

#include <google/protobuf/message.h>
#include <google/protobuf/unknown_field_set.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/process_id.h"
#include "coordinator/api/grpc_call.h"
#include "coordinator/api/lifecycle_calls.h"
#include "proto/status.h"

namespace somnus {
namespace {

v1::EngineState ToProto(EngineState state) {
  switch (state) {
    case EngineState::kLoading:
      return v1::ENGINE_STATE_LOADING;
    case EngineState::kAwake:
      return v1::ENGINE_STATE_AWAKE;
    case EngineState::kFallingAsleep:
      return v1::ENGINE_STATE_FALLING_ASLEEP;
    case EngineState::kAsleep:
      return v1::ENGINE_STATE_ASLEEP;
    case EngineState::kWaking:
      return v1::ENGINE_STATE_WAKING;
    case EngineState::kRecovering:
      return v1::ENGINE_STATE_RECOVERING;
    case EngineState::kDraining:
      return v1::ENGINE_STATE_DRAINING;
    case EngineState::kFailed:
      return v1::ENGINE_STATE_FAILED;
  }
  return v1::ENGINE_STATE_UNSPECIFIED;
}

// A client that sends fields of a later version must not believe that this server acted on them.
grpc::Status CheckFields(const google::protobuf::Message& request) {
  const google::protobuf::UnknownFieldSet& unknown = request.GetReflection()->GetUnknownFields(request);
  if (unknown.empty()) return grpc::Status::OK;
  return {grpc::StatusCode::INVALID_ARGUMENT,
          absl::StrCat("field ", unknown.field(0).number(), " of ", request.GetDescriptor()->name(),
                       " is not known here")};
}

void AddReplicas(const EngineStats& stats, v1::GetStatusResponse* response) {
  for (size_t i = 0; i < stats.replicas.size(); ++i) {
    const ReplicaStats& replica = stats.replicas[i];
    v1::ReplicaStatus* status = response->add_replicas();
    status->set_replica(static_cast<int32_t>(i));
    status->set_state(ToProto(replica.state));
    status->set_error(replica.error);
    status->set_num_requests_running(replica.num_running);
    status->set_num_requests_waiting(replica.num_waiting);
    status->set_num_requests(replica.num_requests);
    status->set_num_recoveries(replica.num_recoveries);
    status->set_group_epoch(replica.group_epoch);
  }
}

}  // namespace

ControlServiceImpl::ControlServiceImpl(const ModelSlot* slot, GrpcServicesOptions options)
    : slot_(slot), options_(std::move(options)), start_(MonotonicNow()) {}

grpc::Status ControlServiceImpl::GetStatus(grpc::ServerContext* context, const v1::GetStatusRequest*,
                                           v1::GetStatusResponse* response) {
  if (grpc::Status status = CheckKey(*context, options_.admin_api_key); !status.ok()) return status;
  response->set_version(options_.version);
  const ProcessId process = ThisProcess();
  response->mutable_process()->set_pid(process.pid);
  response->mutable_process()->set_start_time(process.start_time);
  response->mutable_process()->set_boot_id(BootId());
  response->set_uptime_s(absl::ToDoubleSeconds(MonotonicNow() - start_));
  response->set_state(v1::ENGINE_STATE_LOADING);
  response->set_not_ready_reason(WhyNotReady(EngineState::kLoading));
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
  response->set_not_ready_reason(std::string(model->engine->Health().message()));
  response->set_num_requests_running(stats.num_running);
  response->set_num_requests_waiting(stats.num_waiting);
  response->set_total_blocks(stats.total_blocks);
  response->set_free_blocks(stats.free_blocks);
  response->set_max_model_len(model->engine->max_model_len());
  response->set_kv_cache_dtype(model->kv_cache_dtype);
  response->set_group_epoch(stats.group_epoch);
  response->set_num_recoveries(stats.num_recoveries);
  response->set_num_requests_moved(stats.num_moved);
  AddReplicas(stats, response);
  return grpc::Status::OK;
}

grpc::Status ControlServiceImpl::Sleep(grpc::ServerContext* context, const v1::SleepRequest* request,
                                       v1::SleepResponse* response) {
  if (grpc::Status status = CheckKey(*context, options_.admin_api_key); !status.ok()) return status;
  const std::shared_ptr<const ServedModel> model = slot_->Get();
  if (model == nullptr) return LoadingStatus();
  if (grpc::Status status = CheckFields(*request); !status.ok()) return status;
  if (const std::optional<ApiError> error = CheckSleepLevel(request->level())) return ToGrpcStatus(*error);
  const absl::StatusOr<SleepResult> result = SleepEngine(model->engine.get(), {.level = request->level()});
  if (!result.ok()) return EngineRefusal(result.status(), *model->engine);
  const TagBytes freed = result->report.freed_bytes();
  response->mutable_freed_bytes_by_tag()->insert(freed.begin(), freed.end());
  response->set_seconds(absl::ToDoubleSeconds(result->duration));
  response->set_level(result->level);
  response->set_already_asleep(result->already_asleep);
  return grpc::Status::OK;
}

grpc::Status ControlServiceImpl::WakeUp(grpc::ServerContext* context, const v1::WakeUpRequest* request,
                                        v1::WakeUpResponse* response) {
  if (grpc::Status status = CheckKey(*context, options_.admin_api_key); !status.ok()) return status;
  const std::shared_ptr<const ServedModel> model = slot_->Get();
  if (model == nullptr) return LoadingStatus();
  if (grpc::Status status = CheckFields(*request); !status.ok()) return status;
  const std::vector<std::string> tags(request->tags().begin(), request->tags().end());
  if (const std::optional<ApiError> error = CheckWakeUpTags(tags)) return ToGrpcStatus(*error);
  const absl::StatusOr<WakeUpResult> result = WakeUpEngine(model->engine.get(), tags);
  if (!result.ok()) return EngineRefusal(result.status(), *model->engine);
  const TagBytes mapped = result->report.mapped_bytes();
  response->mutable_mapped_bytes_by_tag()->insert(mapped.begin(), mapped.end());
  response->set_seconds(absl::ToDoubleSeconds(result->duration));
  response->set_awake(result->awake);
  response->set_already_resident(result->already_resident);
  return grpc::Status::OK;
}

grpc::Status ControlServiceImpl::Roll(grpc::ServerContext* context, const v1::RollRequest* request,
                                      v1::RollResponse* response) {
  if (grpc::Status status = CheckKey(*context, options_.admin_api_key); !status.ok()) return status;
  const std::shared_ptr<const ServedModel> model = slot_->Get();
  if (model == nullptr) return LoadingStatus();
  if (grpc::Status status = CheckFields(*request); !status.ok()) return status;
  const double grace = request->has_grace_s() ? request->grace_s() : absl::ToDoubleSeconds(kDefaultRollGrace);
  if (const std::optional<ApiError> error = CheckRollGrace(grace)) return ToGrpcStatus(*error);
  const absl::StatusOr<RollResult> result = RollEngine(model->engine.get(), absl::Seconds(grace));
  if (!result.ok()) return EngineRefusal(result.status(), *model->engine);
  response->set_seconds(absl::ToDoubleSeconds(result->duration));
  response->set_num_replicas(result->num_replicas);
  return grpc::Status::OK;
}

}  // namespace somnus
