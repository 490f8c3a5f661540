#pragma once
// The coordinator asks itself whether it lives, as a liveness probe from outside would.

#include <string>

#include "absl/time/time.h"

namespace somnus {

// Returns whether GET /livez at this address is answered with 200, over TLS where `tls` says so: with any
// certificate, since the question and the answer are no secrets. `host` may be a wildcard address, which
// stands for loopback. Sending, and each wait for bytes, may take `timeout`.
bool ProbeLivez(const std::string& host, int port, bool tls, absl::Duration timeout);

}  // namespace somnus
