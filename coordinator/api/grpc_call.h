#pragma once
// What the gRPC services share: the key, and errors as grpc::Status. Internal to coordinator/api.

#include <grpcpp/server_context.h>
#include <grpcpp/support/status.h>

#include <string>

#include "coordinator/api/api_error.h"

namespace somnus {

// UNAUTHENTICATED unless the call carries the key.
grpc::Status CheckKey(const grpc::ServerContext& context, const std::string& api_key);

// A field's error as INVALID_ARGUMENT or NOT_FOUND, "field: problem".
grpc::Status ToGrpcStatus(const ApiError& error);

// UNAVAILABLE: there is no model yet.
grpc::Status LoadingStatus();

}  // namespace somnus
