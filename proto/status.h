#pragma once
// absl::Status is the error of every boundary in Somnus; grpc::Status is how it travels.

#include <grpcpp/support/status.h>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "base/check.h"
#include "base/status_macros.h"

namespace somnus {

// Codes are the same numbers on both sides; the message travels, payloads do not.
grpc::Status ToGrpcStatus(const absl::Status& status);
absl::Status FromGrpcStatus(const grpc::Status& status);

// `status` with "context: " before its message; ok stays ok.
absl::Status Annotate(const absl::Status& status, absl::string_view context);

}  // namespace somnus
