#pragma once
// Reads fields of ControlService's requests, and writes fields of the replies. Internal to coordinator/grpc.

#include <google/protobuf/message.h>
#include <grpcpp/support/status.h>

#include <optional>

#include "coordinator/grpc/calls/grpc_call.h"
#include "coordinator/operators/lifecycle_calls.h"
#include "proto/control.pb.h"

namespace somnus {

// INVALID_ARGUMENT names a field that this server does not know: a client that sends fields of a later
// version must not believe that this server acted on the fields.
grpc::Status CheckKnownFields(const google::protobuf::Message& request);
// As CheckKnownFields, for a request without weights: RESOURCE_EXHAUSTED where the request is larger than any
// request that makes sense.
grpc::Status CheckFields(const google::protobuf::Message& request);

v1::EngineState ToProto(EngineState state);

// Nullopt: a number that this server does not know.
std::optional<SleepMode> FromProto(v1::SleepMode mode);

// Reads mode, weights_version and weights_label of a reload, or of the beginning of an update.
template <typename Request>
grpc::Status ReadWeightsFields(const Request& request, WeightsRequest* out) {
  const std::optional<SleepMode> mode =
      request.mode() == v1::SLEEP_MODE_UNSPECIFIED ? SleepMode::kWait : FromProto(request.mode());
  if (!mode.has_value()) return ToGrpcStatus(BadSleepMode());
  out->mode = *mode;
  out->label = request.weights_label();
  if (!out->label.empty()) {
    if (const auto error = CheckWeightLabel("weights_label", out->label)) return ToGrpcStatus(*error);
  }
  if (!request.has_weights_version()) return grpc::Status::OK;
  out->version = request.weights_version();
  if (const std::optional<ApiError> error = CheckWeightsVersion(out->version)) return ToGrpcStatus(*error);
  return grpc::Status::OK;
}

}  // namespace somnus
