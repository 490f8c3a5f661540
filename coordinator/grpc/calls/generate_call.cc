#include "coordinator/grpc/calls/generate_call.h"

#include <optional>
#include <utility>
#include <variant>

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

}  // namespace

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
  model_->metrics->OnRejected(RejectionReason(status));
  const grpc::Status refusal = EngineRefusal(status, *model_->engine);
  // The engine is asleep, and may be woken.
  return absl::IsFailedPrecondition(status) ? WithRetry(refusal, kRetryDelay) : refusal;
}

grpc::Status GenerateCall::HandOver(GenerateWriter* writer) {
  for (const ChoiceUpdate& update : request_.Take()) {
    if (update.delta.finish_reason == FinishReason::kError) {
      const absl::Status& error = update.delta.error;
      return EngineRefusal(error.ok() ? absl::InternalError("") : error, *model_->engine);
    }
    if (!writer->Add(update)) return grpc::Status::CANCELLED;
  }
  if (request_.overflowed()) return {grpc::StatusCode::RESOURCE_EXHAUSTED, "the client reads too slowly"};
  return grpc::Status::OK;
}

grpc::Status GenerateCall::Run(ResponseBudget* budget, const char* held_field, GenerateWriter* writer) {
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

grpc::Status OpenGenerate(const grpc::ServerContext& context, const v1::GenerateRequest& request,
                          const ModelTable& models, Metrics* metrics, const ApiLimits& limits,
                          SharedModel* model, GenerateParams* params) {
  *model = models.Find(request.model());
  if (*model == nullptr) *model = models.Get();  // ReadGenerate names the fault of the name
  if (*model == nullptr) {
    metrics->OnRejected("not_serving");
    return LoadingStatus(models);
  }
  GenerateOrError parsed = ReadGenerate(context, request, **model, limits);
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

}  // namespace somnus
