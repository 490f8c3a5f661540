#include "coordinator/grpc/control_service.h"

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/memory_tags.h"
#include "base/process_id.h"
#include "coordinator/grpc/calls/grpc_call.h"
#include "coordinator/grpc/control_fields.h"
#include "coordinator/grpc/status_messages.h"
#include "coordinator/metrics/latency_sums.h"
#include "coordinator/operators/adapter_calls.h"
#include "coordinator/operators/lifecycle_calls.h"
#include "proto/status.h"

namespace somnus {
namespace {

void Fill(const TransitionReport& report, v1::TransitionReport* out) {
  for (const auto& [tag, outcome] : report.tags) {
    v1::TransitionReport::Outcome& to = (*out->mutable_tags())[tag];
    to.set_state(TagStateName(outcome.state));
    to.set_changed(outcome.changed);
  }
  for (const RankReport& rank : report.ranks) {
    v1::RankReport* to = out->add_ranks();
    to->set_replica(rank.replica);
    to->set_rank(rank.rank);
    for (const auto& [tag, bytes] : rank.tags) {
      v1::TagReport& of_tag = (*to->mutable_tags())[tag];
      of_tag.set_freed_bytes(bytes.freed_bytes);
      of_tag.set_backed_up_bytes(bytes.backed_up_bytes);
      of_tag.set_discarded_bytes(bytes.discarded_bytes);
      of_tag.set_mapped_bytes(bytes.mapped_bytes);
      of_tag.set_resident_bytes(bytes.resident_bytes);
      of_tag.set_host_bytes(bytes.host_bytes);
      of_tag.set_file_bytes(bytes.file_bytes);
      of_tag.set_sleeping_bytes(bytes.sleeping_bytes);
    }
    v1::PhaseSeconds* seconds = to->mutable_seconds();
    seconds->set_prepare(rank.seconds.prepare);
    seconds->set_commit(rank.seconds.commit);
    seconds->set_copy(rank.seconds.copy);
    seconds->set_map(rank.seconds.map);
    seconds->set_release(rank.seconds.release);
    seconds->set_read(rank.seconds.read);
  }
}

// The name of a request's call: "Sleep" for SleepRequest.
std::string CallOf(const google::protobuf::Descriptor& request) {
  return std::string(absl::StripSuffix(request.name(), "Request"));
}

void Fill(const EngineStats& stats, v1::SchedulingCounters* counters) {
  for (size_t i = 0; i < kPreemptionCauses.size(); ++i) {
    (*counters->mutable_preemptions_by_swap())[kPreemptionCauses[i]] = stats.preemptions.by_swap[i];
    (*counters->mutable_preemptions_by_recompute())[kPreemptionCauses[i]] = stats.preemptions.by_recompute[i];
  }
  counters->set_swapped_out_blocks(stats.swaps.out_blocks);
  counters->set_swapped_in_blocks(stats.swaps.in_blocks);
  counters->set_copied_blocks(stats.copied_blocks);
  counters->set_watermark_refusals(stats.watermark_refusals);
  counters->set_prefix_cache_queries(stats.prefix_cache_queries);
  counters->set_prefix_cache_hits(stats.prefix_cache_hits);
  counters->set_first_scheduled(stats.num_first_scheduled);
  counters->set_queue_s(absl::ToDoubleSeconds(stats.queue_time));
  counters->set_draft_tokens(stats.speculation.num_draft_tokens);
  counters->set_accepted_draft_tokens(stats.speculation.num_accepted_tokens);
}

void Fill(const Latencies& sums, v1::TokenLatencies* latency) {
  latency->set_num_first_tokens(sums.num_first_tokens);
  latency->set_first_token_s(absl::ToDoubleSeconds(sums.first_tokens));
  latency->set_num_further_tokens(sums.num_further_tokens);
  latency->set_further_token_s(absl::ToDoubleSeconds(sums.further_tokens));
}

void Fill(const ServedModel& model, v1::ModelStatus* status) {
  const EngineStats stats = model.engine->Stats();
  status->set_model(model.name);
  status->set_state(ToProto(stats.state));
  status->set_sleep_level(stats.sleep_level);
  status->set_paused(stats.paused);
  status->set_error(stats.error.empty() ? stats.wake_up_error : stats.error);
  FillReasons(*model.engine, stats, status);
  status->set_num_requests_running(stats.num_running);
  status->set_num_requests_waiting(stats.num_waiting);
  int64_t resident_bytes = 0, host_bytes = 0;
  for (const auto& [tag, bytes] : stats.resident_bytes) resident_bytes += bytes;
  for (const auto& [tag, bytes] : stats.host_bytes) host_bytes += bytes;
  status->set_resident_bytes(resident_bytes);
  status->set_host_bytes(host_bytes);
  status->set_total_blocks(stats.total_blocks);
  status->set_free_blocks(stats.free_blocks);
  const auto cache = stats.resident_bytes.find(kKvCacheTag);
  const bool has_cache =
      stats.state != EngineState::kFailed && (cache == stats.resident_bytes.end() || cache->second > 0);
  status->set_mapped_blocks(has_cache ? stats.mapped_blocks : 0);
  status->set_max_blocks(stats.max_blocks);
  status->set_prompt_tokens(stats.prompt_tokens);
  status->set_generation_tokens(stats.generation_tokens);
  status->set_num_steps(stats.num_steps);
  status->set_pinned(model.pinned);
  status->set_priority(model.priority);
  status->set_ttft_target_s(absl::ToDoubleSeconds(model.ttft_target));
  status->set_tpot_target_s(absl::ToDoubleSeconds(model.tpot_target));
  status->set_decode_step_s(absl::ToDoubleSeconds(stats.decode_step_time));
  status->set_oldest_wait_s(absl::ToDoubleSeconds(stats.oldest_wait));
  Fill(stats, status->mutable_scheduling());
  if (model.latencies != nullptr) Fill(model.latencies->Sums(), status->mutable_latency());
}

}  // namespace

ControlServiceImpl::ControlServiceImpl(const ModelTable* models, GrpcServicesOptions options)
    : models_(models),
      options_(std::move(options)),
      start_(MonotonicNow()),
      transition_watch_(options_.limits.max_transition_watchers),
      call_bounds_(options_.limits.max_lifecycle_calls) {}

struct ControlServiceImpl::OperatorCall {
  SharedModel model;
  CallBounds::Place place;
  std::optional<CallerScope> caller;
};

template <typename Request>
grpc::Status ControlServiceImpl::Open(grpc::ServerContext* context, const Request& request,
                                      OperatorCall* call) {
  if (grpc::Status status = CheckKey(*context, options_.admin_api_keys); !status.ok()) return status;
  if (grpc::Status status = Find(request.model(), &call->model); !status.ok()) return status;
  if (grpc::Status status = CheckFields(request); !status.ok()) return status;
  absl::StatusOr<CallBounds::Place> place =
      call_bounds_.Enter(CallOf(*request.GetDescriptor()), call->model->name);
  if (!place.ok()) return EngineRefusal(place.status(), *call->model->engine);
  call->place = *std::move(place);
  call->caller.emplace(CallerOf(context, options_.admin_api_keys));
  return grpc::Status::OK;
}

grpc::Status ControlServiceImpl::Find(const std::string& name, SharedModel* model) const {
  return FindModel(*models_, name, model);
}

grpc::Status ControlServiceImpl::GetStatus(grpc::ServerContext* context, const v1::GetStatusRequest* request,
                                           v1::GetStatusResponse* response) {
  if (grpc::Status status = CheckKey(*context, options_.admin_api_keys); !status.ok()) return status;
  response->set_version(options_.version);
  const ProcessId process = ThisProcess();
  response->mutable_process()->set_pid(process.pid);
  response->mutable_process()->set_start_time(process.start_time);
  response->mutable_process()->set_boot_id(BootId());
  response->set_uptime_s(absl::ToDoubleSeconds(MonotonicNow() - start_));
  response->set_state(v1::ENGINE_STATE_LOADING);
  Fill(models_->Starting(), response->mutable_state_report());
  response->set_not_ready_reason(response->state_report().line());
  if (models_->Get() == nullptr) return grpc::Status::OK;
  response->clear_state_report();
  // Who does not know that there are several asks about the first.
  SharedModel model = request->model().empty() ? models_->Get() : nullptr;
  if (model == nullptr) {
    if (grpc::Status status = Find(request->model(), &model); !status.ok()) return status;
  }
  if (model->rank_status) {
    for (v1::RankStatus& rank : model->rank_status()) *response->add_ranks() = std::move(rank);
  }
  const EngineStats stats = model->engine->Stats();
  response->set_model(model->name);
  response->set_state(ToProto(stats.state));
  response->set_sleep_level(stats.sleep_level);
  response->set_error(stats.error.empty() ? stats.wake_up_error : stats.error);
  FillReasons(*model->engine, stats, response);
  response->set_num_requests_running(stats.num_running);
  response->set_num_requests_waiting(stats.num_waiting);
  response->set_total_blocks(stats.total_blocks);
  response->set_free_blocks(stats.free_blocks);
  response->set_max_model_len(model->engine->max_model_len());
  response->set_kv_cache_dtype(model->kv_cache_dtype);
  response->set_group_epoch(stats.group_epoch);
  response->set_num_recoveries(stats.num_recoveries);
  response->set_num_requests_moved(stats.num_moved);
  response->set_paused(stats.paused);
  response->set_weights_version(stats.weights_version);
  response->set_weights_source(stats.weights_source);
  Fill(stats.lifecycle_call, response);
  if (stats.weights_version == model->first_weights_version) response->set_weights_note(model->weights_note);
  AddReplicas(stats, response);
  return grpc::Status::OK;
}

grpc::Status ControlServiceImpl::ListModelStatus(grpc::ServerContext* context,
                                                 const v1::ListModelStatusRequest* request,
                                                 v1::ListModelStatusResponse* response) {
  if (grpc::Status status = CheckKey(*context, options_.admin_api_keys); !status.ok()) return status;
  if (grpc::Status status = CheckFields(*request); !status.ok()) return status;
  for (const SharedModel& model : models_->All()) Fill(*model, response->add_models());
  return grpc::Status::OK;
}

grpc::Status ControlServiceImpl::Sleep(grpc::ServerContext* context, const v1::SleepRequest* request,
                                       v1::SleepResponse* response) {
  OperatorCall call;
  if (grpc::Status status = Open(context, *request, &call); !status.ok()) return status;
  const SharedModel& model = call.model;
  const std::optional<SleepMode> mode = FromProto(request->mode());
  if (!mode.has_value()) return ToGrpcStatus(BadSleepMode());
  SleepRequest sleep = {.level = request->has_level() ? request->level() : 1,
                        .tags = {request->tags().begin(), request->tags().end()},
                        .mode = *mode,
                        .force = request->force()};
  std::optional<ApiError> error = CheckSleepLevel(sleep.level);
  if (!error.has_value()) error = CheckSleepTags(sleep.level, sleep.tags);
  if (error.has_value()) return ToGrpcStatus(*error);
  const absl::StatusOr<SleepResult> result = SleepEngine(*model, sleep);
  if (!result.ok()) return EngineRefusal(result.status(), *model->engine);
  const TagBytes freed = result->report.freed_bytes();
  response->mutable_freed_bytes_by_tag()->insert(freed.begin(), freed.end());
  response->set_seconds(absl::ToDoubleSeconds(result->duration));
  response->set_level(result->level);
  response->set_already_asleep(result->already_asleep);
  Fill(result->report, response->mutable_report());
  return grpc::Status::OK;
}

grpc::Status ControlServiceImpl::WakeUp(grpc::ServerContext* context, const v1::WakeUpRequest* request,
                                        v1::WakeUpResponse* response) {
  OperatorCall call;
  if (grpc::Status status = Open(context, *request, &call); !status.ok()) return status;
  const SharedModel& model = call.model;
  const std::vector<std::string> tags(request->tags().begin(), request->tags().end());
  if (const std::optional<ApiError> error = CheckWakeUpTags(tags)) return ToGrpcStatus(*error);
  std::optional<bool> load_weights;
  if (request->has_load_weights()) load_weights = request->load_weights();
  const absl::StatusOr<WakeUpResult> result = WakeUpEngine(*model, tags, load_weights);
  if (!result.ok()) return EngineRefusal(result.status(), *model->engine);
  const TagBytes mapped = result->report.mapped_bytes();
  response->mutable_mapped_bytes_by_tag()->insert(mapped.begin(), mapped.end());
  response->set_seconds(absl::ToDoubleSeconds(result->duration));
  response->set_awake(result->awake);
  response->set_already_resident(result->already_resident);
  Fill(result->report, response->mutable_report());
  return grpc::Status::OK;
}

grpc::Status ControlServiceImpl::WatchTransition(grpc::ServerContext* context,
                                                 const v1::WatchTransitionRequest* request,
                                                 grpc::ServerWriter<v1::WatchTransitionResponse>* writer) {
  if (grpc::Status status = CheckKey(*context, options_.admin_api_keys); !status.ok()) return status;
  SharedModel model;
  if (grpc::Status status = Find(request->model(), &model); !status.ok()) return status;
  if (grpc::Status status = CheckFields(*request); !status.ok()) return status;
  return transition_watch_.Run(*context, *request, *model, writer);
}

grpc::Status ControlServiceImpl::Pause(grpc::ServerContext* context, const v1::PauseRequest* request,
                                       v1::PauseResponse* response) {
  OperatorCall call;
  if (grpc::Status status = Open(context, *request, &call); !status.ok()) return status;
  const SharedModel& model = call.model;
  const std::optional<SleepMode> mode = FromProto(request->mode());
  if (!mode.has_value()) return ToGrpcStatus(BadSleepMode());
  PauseRequest pause = {.mode = *mode};
  if (request->has_clear_cache()) pause.clear_cache = request->clear_cache();
  const absl::StatusOr<absl::Duration> paused = PauseEngine(model->engine.get(), pause);
  if (!paused.ok()) return EngineRefusal(paused.status(), *model->engine);
  response->set_seconds(absl::ToDoubleSeconds(*paused));
  return grpc::Status::OK;
}

grpc::Status ControlServiceImpl::Resume(grpc::ServerContext* context, const v1::ResumeRequest* request,
                                        v1::ResumeResponse* response) {
  OperatorCall call;
  if (grpc::Status status = Open(context, *request, &call); !status.ok()) return status;
  const SharedModel& model = call.model;
  if (const absl::Status status = model->engine->Resume(); !status.ok())
    return EngineRefusal(status, *model->engine);
  response->set_state(ToProto(model->engine->state()));
  return grpc::Status::OK;
}

grpc::Status ControlServiceImpl::ResetPrefixCache(grpc::ServerContext* context,
                                                  const v1::ResetPrefixCacheRequest* request,
                                                  v1::ResetPrefixCacheResponse*) {
  OperatorCall call;
  if (grpc::Status status = Open(context, *request, &call); !status.ok()) return status;
  const SharedModel& model = call.model;
  const absl::Status reset = model->engine->ResetPrefixCache(request->reset_running_requests());
  return reset.ok() ? grpc::Status::OK : EngineRefusal(reset, *model->engine);
}

grpc::Status ControlServiceImpl::AbortRequests(grpc::ServerContext* context,
                                               const v1::AbortRequestsRequest* request,
                                               v1::AbortRequestsResponse* response) {
  if (grpc::Status status = CheckKey(*context, options_.admin_api_keys); !status.ok()) return status;
  SharedModel model;
  if (grpc::Status status = Find(request->model(), &model); !status.ok()) return status;
  if (grpc::Status status = CheckFields(*request); !status.ok()) return status;
  std::optional<std::vector<std::string>> ids;
  if (!request->request_ids().empty())
    ids.emplace(request->request_ids().begin(), request->request_ids().end());
  response->set_num_aborted(somnus::AbortRequests(*model, ids));
  return grpc::Status::OK;
}

grpc::Status ControlServiceImpl::Revive(grpc::ServerContext* context, const v1::ReviveRequest* request,
                                        v1::ReviveResponse* response) {
  OperatorCall call;
  if (grpc::Status status = Open(context, *request, &call); !status.ok()) return status;
  const SharedModel& model = call.model;
  const absl::StatusOr<absl::Duration> revived = ReviveEngine(model->engine.get());
  if (!revived.ok()) return EngineRefusal(revived.status(), *model->engine);
  response->set_seconds(absl::ToDoubleSeconds(*revived));
  response->set_state(ToProto(model->engine->state()));
  return grpc::Status::OK;
}

grpc::Status ControlServiceImpl::Roll(grpc::ServerContext* context, const v1::RollRequest* request,
                                      v1::RollResponse* response) {
  OperatorCall call;
  if (grpc::Status status = Open(context, *request, &call); !status.ok()) return status;
  const SharedModel& model = call.model;
  const double grace = request->has_grace_s() ? request->grace_s() : absl::ToDoubleSeconds(kDefaultRollGrace);
  if (const std::optional<ApiError> error = CheckRollGrace(grace)) return ToGrpcStatus(*error);
  const absl::StatusOr<RollResult> result = RollEngine(model->engine.get(), absl::Seconds(grace));
  if (!result.ok()) return EngineRefusal(result.status(), *model->engine);
  response->set_seconds(absl::ToDoubleSeconds(result->duration));
  response->set_num_replicas(result->num_replicas);
  return grpc::Status::OK;
}

grpc::Status ControlServiceImpl::LoadLoraAdapter(grpc::ServerContext* context,
                                                 const v1::LoadLoraAdapterRequest* request,
                                                 v1::LoadLoraAdapterResponse* response) {
  OperatorCall call;
  if (grpc::Status status = Open(context, *request, &call); !status.ok()) return status;
  const absl::StatusOr<absl::Duration> loaded = LoadAdapter(
      *models_, *call.model,
      {.name = request->lora_name(), .path = request->lora_path(), .in_place = request->load_inplace()});
  if (!loaded.ok()) return EngineRefusal(loaded.status(), *call.model->engine);
  response->set_seconds(absl::ToDoubleSeconds(*loaded));
  return grpc::Status::OK;
}

grpc::Status ControlServiceImpl::UnloadLoraAdapter(grpc::ServerContext* context,
                                                   const v1::UnloadLoraAdapterRequest* request,
                                                   v1::UnloadLoraAdapterResponse* response) {
  OperatorCall call;
  if (grpc::Status status = Open(context, *request, &call); !status.ok()) return status;
  const absl::StatusOr<absl::Duration> unloaded = UnloadAdapter(*call.model, request->lora_name());
  if (!unloaded.ok()) return EngineRefusal(unloaded.status(), *call.model->engine);
  response->set_seconds(absl::ToDoubleSeconds(*unloaded));
  return grpc::Status::OK;
}

grpc::Status ControlServiceImpl::ReloadWeights(grpc::ServerContext* context,
                                               const v1::ReloadWeightsRequest* request,
                                               v1::ReloadWeightsResponse* response) {
  OperatorCall call;
  if (grpc::Status status = Open(context, *request, &call); !status.ok()) return status;
  const SharedModel& model = call.model;
  WeightsRequest reload = {.path = request->path()};
  if (grpc::Status status = ReadWeightsFields(*request, &reload); !status.ok()) return status;
  const absl::StatusOr<WeightsResult> result = ReloadEngine(model->engine.get(), reload);
  if (!result.ok()) return EngineRefusal(result.status(), *model->engine);
  response->set_weights_version(result->change.version);
  response->set_seconds(absl::ToDoubleSeconds(result->duration));
  return grpc::Status::OK;
}

grpc::Status ControlServiceImpl::UpdateWeights(grpc::ServerContext* context,
                                               grpc::ServerReader<v1::UpdateWeightsRequest>* reader,
                                               v1::UpdateWeightsResponse* response) {
  UpdateMessages messages;
  messages.read = [reader](v1::UpdateWeightsRequest* message) { return reader->Read(message); };
  return Update(context, messages, response);
}

grpc::Status ControlServiceImpl::DirectUpdateWeights(grpc::ServerContext* context,
                                                     DirectUpdateStream* stream) {
  UpdateMessages messages;
  messages.read = [stream](v1::UpdateWeightsRequest* message) { return stream->Read(message); };
  messages.write_ports = [stream](const v1::DirectUpdateWeightsResponse::Ports& ports) {
    v1::DirectUpdateWeightsResponse response;
    *response.mutable_ports() = ports;
    return stream->Write(response);
  };
  v1::DirectUpdateWeightsResponse response;
  grpc::Status status = Update(context, messages, response.mutable_done());
  if (status.ok()) stream->Write(response);
  return status;
}

grpc::Status ControlServiceImpl::AbortCall(grpc::ServerContext* context, const v1::AbortCallRequest* request,
                                           v1::AbortCallResponse*) {
  OperatorCall call;
  if (grpc::Status status = Open(context, *request, &call); !status.ok()) return status;
  const absl::Status status = call.model->engine->AbortCall();
  return status.ok() ? grpc::Status::OK : EngineRefusal(status, *call.model->engine);
}

// The first message names the model, so the updates of all models together have the bound of a kind.
grpc::Status ControlServiceImpl::Update(grpc::ServerContext* context, const UpdateMessages& messages,
                                        v1::UpdateWeightsResponse* response) {
  if (grpc::Status status = CheckKey(*context, options_.admin_api_keys); !status.ok()) return status;
  if (models_->Get() == nullptr) return LoadingStatus(*models_);
  const absl::StatusOr<CallBounds::Place> place = call_bounds_.Enter("UpdateWeights", "");
  if (!place.ok()) return EngineRefusal(place.status(), *models_->Get()->engine);
  SharedModel model;
  const auto find = [&](const std::string& name, Engine** engine) {
    grpc::Status status = Find(name, &model);
    if (status.ok()) *engine = model->engine.get();
    return status;
  };
  const UpdatePace pace = {.begin_timeout = options_.limits.header_timeout,
                           .max_silence = options_.limits.weight_update_timeout,
                           .min_bytes_per_s = options_.limits.min_weight_update_bytes_per_s};
  return ReceiveWeights(find, context, CallerOf(context, options_.admin_api_keys), messages, response, pace);
}

}  // namespace somnus
