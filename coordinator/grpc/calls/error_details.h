#pragma once
// Details for a client's program to act on, beside a gRPC status' code and text: google.rpc's error details
// (proto/error_details.proto). Each function returns `status` with one detail more; details of `status` stay.

#include <grpcpp/support/status.h>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "coordinator/residency/engine_state.h"

namespace somnus {

// RetryInfo: the same request may be sent again after `delay`.
grpc::Status WithRetry(const grpc::Status& status, absl::Duration delay);
// ErrorInfo: the engine's state is the reason.
grpc::Status WithReason(const grpc::Status& status, EngineState state);
// BadRequest: the field and its fault.
grpc::Status WithField(const grpc::Status& status, absl::string_view field, absl::string_view description);

}  // namespace somnus
