#pragma once
// Sends requests and times the responses. The client uses one thread and non-blocking sockets, since it
// shares the machine with the server.

#include <vector>

#include "absl/status/statusor.h"
#include "tools/bench/serving/options.h"
#include "tools/bench/serving/report.h"
#include "tools/bench/serving/workload.h"

namespace somnus::bench {

// Runs all requests, as a closed or an open loop by the options, and returns one record for each, in the same
// order. Blocks until the last has ended. Each request opens its own connection, TLS included, within the
// measured time. InvalidArgument: the file with the authorities is of no use.
absl::StatusOr<std::vector<RequestRecord>> RunLoad(const BenchOptions& options,
                                                   const std::vector<BenchRequest>& requests);

}  // namespace somnus::bench
