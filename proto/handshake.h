#pragma once
// Explains failed TLS handshakes of gRPC's connections: gRPC passes on OpenSSL's words, which name a routine,
// to the client alone, and tells the server nothing.

#include <cstdint>

#include "absl/status/status.h"

namespace somnus {

// Returns the error of a call, with words for people where a handshake failed.
absl::Status ExplainHandshake(const absl::Status& status);

// From now on the log says when a handshake on a gRPC listener of this process has failed, at most once a
// minute. Takes the place of gRPC's own log, which is off; does nothing where GRPC_VERBOSITY asks for gRPC's
// log. To be called once, before gRPC is used.
void LogFailedHandshakes();
// The number of handshakes that have failed since. Thread safe.
int64_t NumFailedHandshakes();

}  // namespace somnus
