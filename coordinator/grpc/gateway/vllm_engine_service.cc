#include "coordinator/grpc/gateway/vllm_engine_service.h"

#include <memory>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "coordinator/grpc/calls/grpc_call.h"
#include "coordinator/grpc/gateway/embedding_keeper.h"
#include "coordinator/grpc/gateway/kv_event_stream.h"
#include "coordinator/grpc/gateway/request_translation.h"
#include "coordinator/grpc/gateway/response_writer.h"
#include "coordinator/grpc/gateway/server_facts.h"
#include "coordinator/grpc/gateway/tokenizer_archive.h"
#include "coordinator/metrics/metrics.h"
#include "proto/status.h"

namespace somnus {
namespace {

using grpc::StatusCode;

grpc::Status NotTrusted(StatusCode code, absl::string_view what) {
  return {code, absl::StrCat(what,
                             " is for gateways that are the only clients of this port: the server "
                             "needs --trust-gateways")};
}

}  // namespace

VllmEngineService::VllmEngineService(const ModelTable* models, std::shared_ptr<Metrics> metrics,
                                     GatewayOptions options, GenerateCalls* generate_calls)
    : models_(models),
      metrics_(std::move(metrics)),
      options_(std::move(options)),
      generate_calls_(generate_calls),
      watchers_(options_.limits.max_kv_event_watchers) {}

grpc::Status VllmEngineService::Open(grpc::ServerContext* context, SharedModel* model) const {
  if (grpc::Status status = CheckKey(*context, options_.api_keys); !status.ok()) return status;
  *model = models_->Get();
  return *model == nullptr ? LoadingStatus(*models_) : grpc::Status::OK;
}

template <typename Request, typename MakeWriter>
grpc::Status VllmEngineService::Serve(grpc::ServerContext* context, const Request& request,
                                      const char* held_field, RequestRecord* record,
                                      const MakeWriter& make_writer) {
  SharedModel model;
  GenerateParams params;
  grpc::Status status =
      OpenRequest(*context, request, *models_, metrics_.get(), options_.limits, &model, &params);
  if (!status.ok()) return status;
  GenerateCall call(context, std::move(model), std::move(params), options_.limits,
                    generate_calls_->write_watch);
  if (status = call.Start(); !status.ok()) return status;
  const gateway::OpenCalls::Entry entry(&open_calls_, request.request_id(), &call);
  const auto writer = make_writer(&call);
  return call.Run(&generate_calls_->held_responses, held_field, writer.get(), record);
}

grpc::Status VllmEngineService::Generate(grpc::ServerContext* context,
                                         const gateway::wire::GenerateRequest* request,
                                         grpc::ServerWriter<gateway::wire::GenerateResponse>* writer) {
  return Guarded(context, "Generate", [&](RequestRecord* record) {
    const SharedModel model = models_->Get();
    const int32_t max_model_len = model == nullptr ? 1 : model->engine->max_model_len();
    gateway::RequestOrError translated = gateway::TranslateRequest(*request, max_model_len);
    if (const auto* error = std::get_if<ApiError>(&translated)) {
      metrics_->OnRejected("bad_request");
      return ToGrpcStatus(*error);
    }
    return Serve(context, std::get<v1::GenerateRequest>(translated), "n", record, [&](GenerateCall* call) {
      return std::make_unique<gateway::ResponseWriter>(call, request->stream(), writer);
    });
  });
}

grpc::Status VllmEngineService::Embed(grpc::ServerContext* context,
                                      const gateway::wire::EmbedRequest* request,
                                      gateway::wire::EmbedResponse* response) {
  return Guarded(context, "Embed", [&](RequestRecord* record) {
    v1::EmbedRequest own;
    own.set_request_id(request->request_id());
    *own.add_inputs()->mutable_token_ids()->mutable_ids() = {request->tokenized().input_ids().begin(),
                                                             request->tokenized().input_ids().end()};
    return Serve(context, own, "tokenized", record, [&](GenerateCall* call) {
      return std::make_unique<gateway::EmbeddingKeeper>(call, response);
    });
  });
}

grpc::Status VllmEngineService::Guarded(grpc::ServerContext* context, const char* method,
                                        absl::FunctionRef<grpc::Status(RequestRecord*)> serve) {
  return generate_calls_->Record(
      context, method, gateway::wire::VllmEngine::service_full_name(), [&](RequestRecord* record) {
        const CallSlots::Call open(&generate_calls_->slots);
        if (!open.fits()) {
          metrics_->OnRejected("too_many_calls");
          return TooManyCalls();
        }
        if (grpc::Status status = CheckKey(*context, options_.api_keys); !status.ok()) return status;
        last_receive_us_ = absl::ToUnixMicros(absl::Now());
        try {
          return serve(record);
        } catch (const std::exception&) {
          return grpc::Status(StatusCode::INTERNAL, "internal error");
        }
      });
}

grpc::Status VllmEngineService::StartProfile(grpc::ServerContext*,
                                             const gateway::common::StartProfileRequest*,
                                             gateway::common::ProfileResponse*) {
  return {StatusCode::UNIMPLEMENTED,
          "there is no profiler: /trace on operators' HTTP port tells of each step"};
}

grpc::Status VllmEngineService::StopProfile(grpc::ServerContext* context,
                                            const gateway::common::StopProfileRequest*,
                                            gateway::common::ProfileResponse* response) {
  return StartProfile(context, nullptr, response);
}

grpc::Status VllmEngineService::HealthCheck(grpc::ServerContext*, const gateway::wire::HealthCheckRequest*,
                                            gateway::wire::HealthCheckResponse* response) {
  const SharedModel model = models_->Get();
  if (model == nullptr) {
    response->set_message(CleanMessage(models_->Starting().Line()));
    return grpc::Status::OK;
  }
  const absl::Status health = model->engine->Health();
  response->set_healthy(health.ok());
  response->set_message(health.ok() ? "" : CleanMessage(health.message()));
  return grpc::Status::OK;
}

grpc::Status VllmEngineService::Abort(grpc::ServerContext* context,
                                      const gateway::wire::AbortRequest* request,
                                      gateway::wire::AbortResponse*) {
  if (grpc::Status status = CheckKey(*context, options_.api_keys); !status.ok()) return status;
  for (const std::string& id : request->request_ids()) {
    if (!id.empty()) open_calls_.Abort(id);  // the empty id is of all calls without an id
  }
  return grpc::Status::OK;
}

grpc::Status VllmEngineService::GetModelInfo(grpc::ServerContext* context,
                                             const gateway::wire::GetModelInfoRequest*,
                                             gateway::wire::GetModelInfoResponse* response) {
  SharedModel model;
  if (grpc::Status status = Open(context, &model); !status.ok()) return status;
  *response = gateway::ModelInfo(*model);
  return grpc::Status::OK;
}

grpc::Status VllmEngineService::GetServerInfo(grpc::ServerContext* context,
                                              const gateway::wire::GetServerInfoRequest*,
                                              gateway::wire::GetServerInfoResponse* response) {
  SharedModel model;
  if (grpc::Status status = Open(context, &model); !status.ok()) return status;
  *response = gateway::ServerInfo(*model, model->engine->Stats());
  response->set_last_receive_timestamp(static_cast<double>(last_receive_us_.load()) / 1e6);
  response->set_uptime_seconds(absl::ToDoubleSeconds(MonotonicNow() - start_));
  return grpc::Status::OK;
}

grpc::Status VllmEngineService::GetLoads(grpc::ServerContext* context,
                                         const gateway::wire::GetLoadsRequest* request,
                                         gateway::wire::GetLoadsResponse* response) {
  SharedModel model;
  if (grpc::Status status = Open(context, &model); !status.ok()) return status;
  if (request->has_dp_rank() && request->dp_rank() != 0)
    return ToGrpcStatus(BadRequest("dp_rank", "must be 0 or not set: the replicas are one engine"));
  const EngineStats stats = model->engine->Stats();
  response->set_timestamp(absl::FormatTime(absl::RFC3339_full, absl::Now(), absl::UTCTimeZone()));
  response->set_version(options_.version);
  response->set_dp_rank_count(1);
  const double rate = generated_.Look(stats.generation_tokens, MonotonicNow());
  gateway::FillLoad(stats, gateway::MaxNumSeqs(*model, stats), rate, response->add_loads());
  return grpc::Status::OK;
}

grpc::Status VllmEngineService::FlushCache(grpc::ServerContext* context,
                                           const gateway::common::FlushCacheRequest*,
                                           gateway::common::FlushCacheResponse* response) {
  const CallSlots::Call open(&flushes_);
  if (!open.fits()) return TooManyCalls();
  SharedModel model;
  if (grpc::Status status = Open(context, &model); !status.ok()) return status;
  if (!options_.trusts_callers) return NotTrusted(StatusCode::PERMISSION_DENIED, "FlushCache");
  const absl::Status reset = model->engine->ResetPrefixCache(/*preempt_running=*/false);
  if (!reset.ok()) return EngineRefusal(reset, *model->engine);
  response->set_success(true);
  return grpc::Status::OK;
}

grpc::Status VllmEngineService::GetTokenizer(grpc::ServerContext* context,
                                             const gateway::common::GetTokenizerRequest*,
                                             grpc::ServerWriter<gateway::common::GetTokenizerChunk>* writer) {
  const CallSlots::Call open(&tokenizers_);
  if (!open.fits()) return TooManyCalls();
  SharedModel model;
  if (grpc::Status status = Open(context, &model); !status.ok()) return status;
  if (model->tokenizer_folder.empty()) {
    return {
        StatusCode::UNIMPLEMENTED,
        "the model is one file, which has no files of a tokenizer: the gateway needs the tokenizer's files "
        "from elsewhere"};
  }
  const absl::Status written = gateway::WriteTokenizer(
      model->tokenizer_folder, model->chat_template, [&](const gateway::common::GetTokenizerChunk& chunk) {
        const WriteWatch::Write write(generate_calls_->write_watch, context, nullptr);
        return writer->Write(chunk) && !write.cancelled();
      });
  return written.ok() ? grpc::Status::OK : ToGrpcStatus(written);
}

// UNIMPLEMENTED is also the code of what is not enabled, and gateways stop asking then.
grpc::Status VllmEngineService::SubscribeKvEvents(grpc::ServerContext* context,
                                                  const gateway::common::SubscribeKvEventsRequest* request,
                                                  grpc::ServerWriter<gateway::common::KvEventBatch>* writer) {
  const CallSlots::Call open(&watchers_);
  if (!open.fits()) return TooManyCalls();
  SharedModel model;
  if (grpc::Status status = Open(context, &model); !status.ok()) return status;
  if (!options_.trusts_callers) return NotTrusted(StatusCode::UNIMPLEMENTED, "SubscribeKvEvents");
  if (model->kv_events == nullptr) {
    return {StatusCode::UNIMPLEMENTED,
            "KV events are off: they need --max-kv-events and --enable-prefix-caching"};
  }
  try {
    return gateway::KvEventStream(context, *model, generate_calls_->write_watch, &generated_, writer)
        .Follow(*request);
  } catch (const std::exception&) {
    return {StatusCode::INTERNAL, "internal error"};
  }
}

}  // namespace somnus
