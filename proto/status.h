#pragma once
// absl::Status is the error of every boundary in Somnus; grpc::Status carries it over the wire.

#include <grpcpp/support/status.h>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "base/check.h"
#include "base/status_macros.h"

namespace somnus {

// The prefix of type URLs: a payload with such a URL is a serialized message of proto/.
inline constexpr char kPayloadPrefix[] = "type.googleapis.com/somnus.v1.";

// Codes are the same numbers on both sides; the message travels, and so do payloads that are messages of our
// own protocol (kPayloadPrefix), as error details of google.rpc.Status (proto/error_details.proto).
grpc::Status ToGrpcStatus(const absl::Status& status);
absl::Status FromGrpcStatus(const grpc::Status& wire);

// `status` with "context: " before its message; payloads stay, and ok stays ok.
absl::Status Annotate(const absl::Status& status, absl::string_view context);

}  // namespace somnus
