#pragma once
// Functions that the gRPC services share: the check of the key, and errors as grpc::Status. Internal to
// coordinator/grpc.

#include <grpcpp/server_context.h>
#include <grpcpp/support/status.h>

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "coordinator/engine/caller.h"
#include "coordinator/engine/engine.h"
#include "coordinator/http/api_error.h"
#include "coordinator/http/api_keys.h"
#include "coordinator/openai/model_table.h"

namespace somnus {

// The call's metadata in place of HTTP's header of that name; empty: none. The text belongs to the context.
absl::string_view AuthorizationOf(const grpc::ServerContext& context);
// UNAUTHENTICATED unless the call carries one of the keys, where a key is required.
grpc::Status CheckKey(const grpc::ServerContext& context, const ApiKeys& api_keys);

// Returns a 400 as INVALID_ARGUMENT, with the field as a detail, a 404 as NOT_FOUND, a 503 as
// UNAVAILABLE with RetryInfo, other errors as INTERNAL; the message is "field: problem".
grpc::Status ToGrpcStatus(const ApiError& error);

// UNAVAILABLE: the models are being loaded.
grpc::Status LoadingStatus(const ModelTable& models);

// RESOURCE_EXHAUSTED, with RetryInfo: as many calls are open as may.
grpc::Status TooManyCalls();

// The address and port of a call's client.
std::string PeerOf(const grpc::ServerContext& context);

// The client of a call, by address and by the name of the key of `api_keys` that the call shows. `context`
// must outlive the result, in which has_left asks the context.
Caller CallerOf(grpc::ServerContext* context, const ApiKeys& api_keys);

// The model of an operator's call, by its name, which may be empty where only one model is served.
grpc::Status FindModel(const ModelTable& models, const std::string& name, SharedModel* model);

// Returns the error with which the engine has refused a call: a full queue or missing memory with RetryInfo,
// a state in which the engine does not serve with ErrorInfo, and also with RetryInfo where the engine is well
// but has no room (error_details.h); and with MissingMemory (proto/missing_memory.h), where the error has the
// details. The message goes through CleanMessage.
grpc::Status EngineRefusal(const absl::Status& status, const Engine& engine);

}  // namespace somnus
