#pragma once
// Memory that ranks lack (proto/transition.proto), as a payload of the error that says so. ToGrpcStatus and
// FromGrpcStatus (proto/status.h) carry it as the detail of a gRPC status. Pure functions.

#include "absl/status/status.h"
#include "proto/transition.pb.h"

namespace somnus {

// Returns `status`, an error, with `missing` in the place of an earlier payload; without any shortage the
// result has no payload.
absl::Status WithMissing(absl::Status status, const v1::MissingMemory& missing);
// The payload of `status`; no shortages where there is no payload, or where the payload cannot be read.
v1::MissingMemory MissingOf(const absl::Status& status);

}  // namespace somnus
