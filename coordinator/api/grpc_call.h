#pragma once
// Functions that the gRPC services share: the check of the key, and errors as grpc::Status. Internal to
// coordinator/api.

#include <grpcpp/server_context.h>
#include <grpcpp/support/status.h>

#include <string>

#include "coordinator/api/api_error.h"

namespace somnus {

// UNAUTHENTICATED unless the call carries the key.
grpc::Status CheckKey(const grpc::ServerContext& context, const std::string& api_key);

// Returns a 400 as INVALID_ARGUMENT, a 404 as NOT_FOUND, others as INTERNAL; the message is "field: problem".
grpc::Status ToGrpcStatus(const ApiError& error);

// UNAVAILABLE: the model is loading.
grpc::Status LoadingStatus();

}  // namespace somnus
