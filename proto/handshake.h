#pragma once
// What failed TLS handshakes of gRPC's connections mean, in our words: gRPC passes on OpenSSL's, which name a
// routine, to the one who dials, and tells nobody who listens.

#include <cstdint>

#include "absl/status/status.h"

namespace somnus {

// Of the error of a call: where a handshake failed, the same error with words for people.
absl::Status ExplainHandshake(const absl::Status& status);

// From now on the log says when a handshake on one of this process' gRPC listeners has failed, at most once a
// minute. Takes the place of gRPC's own log, which is off; does nothing where GRPC_VERBOSITY asks for that.
// To be called once, before gRPC is used.
void LogFailedHandshakes();
// How many have failed since. Thread safe.
int64_t NumFailedHandshakes();

}  // namespace somnus
