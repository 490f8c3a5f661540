#include "coordinator/grpc/calls/generate_call.h"

#include <optional>
#include <string>
#include <utility>
#include <variant>

#include "absl/cleanup/cleanup.h"
#include "absl/time/clock.h"
#include "coordinator/grpc/calls/error_details.h"
#include "coordinator/grpc/calls/generate_fields.h"
#include "coordinator/grpc/calls/grpc_call.h"
#include "coordinator/metrics/metrics.h"
#include "coordinator/openai/grammar_request.h"

namespace somnus {
namespace {

// `error` is a ResponseBudget's.
grpc::Status HeldTooMuch(const ApiError& error, const char* field) {
  if (error.status == 503) return {grpc::StatusCode::UNAVAILABLE, error.message};
  return ToGrpcStatus(BadRequest(field,
                                 "the candidates take too much memory: ask for fewer, or for fewer tokens or "
                                 "log-probabilities"));
}

std::string MetadataOf(const grpc::ServerContext& context, const char* name) {
  const auto found = context.client_metadata().find(name);
  return found == context.client_metadata().end() ? ""
                                                  : std::string(found->second.data(), found->second.size());
}

// Ok unless the choice has ended without what the client asked for: there is no half of an embedding.
grpc::Status ErrorOf(const OutputDelta& delta, const GenerateParams& params, const ServedModel& model) {
  if (delta.finish_reason == FinishReason::kError)
    return EngineRefusal(delta.error.ok() ? absl::InternalError("") : delta.error, *model.engine);
  if (delta.finish_reason == FinishReason::kAbort && params.embedding.has_value())
    return {grpc::StatusCode::ABORTED, "the request was aborted"};
  return grpc::Status::OK;
}

template <typename Request>
grpc::Status Open(const grpc::ServerContext& context, const Request& request, const ModelTable& models,
                  Metrics* metrics, const ApiLimits& limits, SharedModel* model, GenerateParams* params) {
  *model = models.Find(request.model());
  if (*model == nullptr) *model = models.Get();  // ReadRequest names the fault of the name
  if (*model == nullptr) {
    metrics->OnRejected("not_serving");
    return LoadingStatus(models);
  }
  GenerateOrError parsed = ReadRequest(context, request, **model, limits);
  std::optional<ApiError> error;
  if (auto* fault = std::get_if<ApiError>(&parsed)) {
    error = std::move(*fault);
  } else {
    *params = std::get<GenerateParams>(std::move(parsed));
    error = AwaitConstraint(**model, params);
  }
  if (!error.has_value()) return grpc::Status::OK;
  (*model)->metrics->OnRejected("bad_request");
  return ToGrpcStatus(*error);
}

}  // namespace

grpc::Status GenerateCalls::Record(grpc::ServerContext* context, const char* method, const char* service,
                                   absl::FunctionRef<grpc::Status(RequestRecord*)> serve) const {
  RequestRecord record;
  if (recorder == nullptr) return serve(&record);
  record.protocol = "grpc";
  record.client = PeerOf(*context);
  record.request_id = MetadataOf(*context, "x-request-id");
  record.traceparent = MetadataOf(*context, "traceparent");
  record.tracestate = MetadataOf(*context, "tracestate");
  record.method = method;
  record.route = service;
  record.generates = true;
  record.begin = absl::Now();
  grpc::Status status = serve(&record);
  record.status = status.error_code();
  record.end = absl::Now();
  recorder->Record(record);
  return status;
}

GenerateCall::GenerateCall(grpc::ServerContext* context, SharedModel model, GenerateParams params,
                           const ApiLimits& limits, WriteWatch* write_watch)
    : context_(context),
      model_(std::move(model)),
      params_(std::move(params)),
      write_watch_(write_watch),
      request_(model_, &params_, model_->metrics, limits.max_stream_backlog_bytes) {}

grpc::Status GenerateCall::Start() {
  const absl::Status status = request_.Submit([bell = bell_] { bell->Ring(); });
  if (status.ok()) return grpc::Status::OK;
  model_->metrics->OnRejected(RejectionReason(status), status);
  const grpc::Status refusal = EngineRefusal(status, *model_->engine);
  // The engine is asleep, and may be woken.
  return absl::IsFailedPrecondition(status) ? WithRetry(refusal, kRetryDelay) : refusal;
}

grpc::Status GenerateCall::HandOver(GenerateWriter* writer) {
  for (ChoiceUpdate& update : request_.Take()) {
    if (grpc::Status status = ErrorOf(update.delta, params_, *model_); !status.ok()) return status;
    if (!writer->Add(std::move(update))) return grpc::Status::CANCELLED;
  }
  if (request_.overflowed()) return {grpc::StatusCode::RESOURCE_EXHAUSTED, "the client reads too slowly"};
  return grpc::Status::OK;
}

grpc::Status GenerateCall::Run(ResponseBudget* budget, const char* held_field, GenerateWriter* writer,
                               RequestRecord* record) {
  record->summary = request_.NewSummary();
  const absl::Cleanup summarize = [&] { request_.UpdateSummary(&*record->summary); };
  ResponseBudget::Part held(budget);
  while (!request_.done()) {
    bell_->Wait();
    if (context_->IsCancelled()) return grpc::Status::CANCELLED;  // ~ClientRequest aborts the request
    if (grpc::Status status = HandOver(writer); !status.ok()) return status;
    if (const std::optional<ApiError> error = held.Hold(request_.held_bytes() + writer->held_bytes()))
      return HeldTooMuch(*error, held_field);
    if (!writer->Flush(request_.done())) return grpc::Status::CANCELLED;
  }
  return grpc::Status::OK;
}

grpc::Status OpenRequest(const grpc::ServerContext& context, const v1::GenerateRequest& request,
                         const ModelTable& models, Metrics* metrics, const ApiLimits& limits,
                         SharedModel* model, GenerateParams* params) {
  return Open(context, request, models, metrics, limits, model, params);
}

grpc::Status OpenRequest(const grpc::ServerContext& context, const v1::EmbedRequest& request,
                         const ModelTable& models, Metrics* metrics, const ApiLimits& limits,
                         SharedModel* model, GenerateParams* params) {
  return Open(context, request, models, metrics, limits, model, params);
}

}  // namespace somnus
