#pragma once
// Sends requests and times what comes back. It uses one thread and non-blocking sockets, since it shares the
// machine with the server.

#include <vector>

#include "absl/status/statusor.h"
#include "tools/bench/serving/options.h"
#include "tools/bench/serving/report.h"
#include "tools/bench/serving/workload.h"

namespace somnus::bench {

// Runs all requests, as a closed or an open loop by the options, and returns one record for each, in the same
// order. Blocks until the last has ended. Each request opens its own connection within the time that is
// measured, with its TLS. InvalidArgument: the file with the authorities is of no use.
absl::StatusOr<std::vector<RequestRecord>> RunLoad(const BenchOptions& options,
                                                   const std::vector<BenchRequest>& requests);

}  // namespace somnus::bench
