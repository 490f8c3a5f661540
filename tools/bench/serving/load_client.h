#pragma once
// Sends requests and times what comes back. One thread, non-blocking sockets: it shares the machine with the
// server.

#include <vector>

#include "tools/bench/serving/options.h"
#include "tools/bench/serving/report.h"
#include "tools/bench/serving/workload.h"

namespace somnus::bench {

// Runs all requests, closed or open loop as options say; one record each, in the same order. Blocks until the
// last has ended. One connection per request, opened within the time that is measured.
std::vector<RequestRecord> RunLoad(const BenchOptions& options, const std::vector<BenchRequest>& requests);

}  // namespace somnus::bench
