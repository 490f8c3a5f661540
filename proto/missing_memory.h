#pragma once
// Memory that ranks lack (proto/transition.proto), as a payload of the error that says so. ToGrpcStatus and
// FromGrpcStatus (proto/status.h) carry it as the detail of a gRPC status. Pure functions.

#include "absl/status/status.h"
#include "proto/transition.pb.h"

namespace somnus {

// Returns `status`, an error, with `missing` in the place of what it had; without any shortage it has none.
absl::Status WithMissing(absl::Status status, const v1::MissingMemory& missing);
// What the status says; no shortages where it says nothing, or what cannot be read.
v1::MissingMemory MissingOf(const absl::Status& status);

}  // namespace somnus
