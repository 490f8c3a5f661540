#include "coordinator/api/grpc_call.h"

#include "absl/strings/string_view.h"
#include "coordinator/api/api_key.h"
#include "coordinator/api/error_details.h"
#include "coordinator/residency/engine_state.h"
#include "proto/status.h"

namespace somnus {

grpc::Status CheckKey(const grpc::ServerContext& context, const std::string& api_key) {
  if (api_key.empty()) return grpc::Status::OK;
  const auto it = context.client_metadata().find("authorization");
  const absl::string_view given = it == context.client_metadata().end()
                                      ? absl::string_view()
                                      : absl::string_view(it->second.data(), it->second.size());
  if (BearerMatches(given, api_key)) return grpc::Status::OK;
  return {grpc::StatusCode::UNAUTHENTICATED, "Unauthorized"};
}

grpc::Status ToGrpcStatus(const ApiError& error) {
  const std::string message = MessageWithParam(error);
  switch (error.status) {
    case 400: {
      const grpc::Status status(grpc::StatusCode::INVALID_ARGUMENT, message);
      return error.param.empty() ? status : WithField(status, error.param, error.message);
    }
    case 404:
      return {grpc::StatusCode::NOT_FOUND, message};
    default:
      return {grpc::StatusCode::INTERNAL, message};
  }
}

grpc::Status LoadingStatus() {
  const grpc::Status status(grpc::StatusCode::UNAVAILABLE, WhyNotReady(EngineState::kLoading));
  return WithReason(status, EngineState::kLoading);
}

grpc::Status EngineRefusal(const absl::Status& status, const Engine& engine) {
  const grpc::Status refusal = ToGrpcStatus(absl::Status(status.code(), CleanMessage(status.message())));
  if (absl::IsResourceExhausted(status)) return WithRetry(refusal, kRetryDelay);
  if (!absl::IsUnavailable(status) && !absl::IsFailedPrecondition(status)) return refusal;
  return WithReason(refusal, engine.state());
}

}  // namespace somnus
