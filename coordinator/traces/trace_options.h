#pragma once
// Where spans of requests go, and how many of them wait. Plain data.

#include <cstdint>
#include <string>

#include "absl/time/time.h"

namespace somnus {

struct TraceExportOptions {
  std::string endpoint;  // http://host[:port][/path] of a collector that takes OTLP; empty: no spans are made
  std::string service_name = "somnus";
  std::string passed_over;  // why the environment's endpoint is not used, for the log; empty: no reason
  double sample = 1;        // the share of requests without a traceparent that are traced
  int32_t max_queued_spans = 2048;
  int32_t max_batch_spans = 512;                     // of one message
  absl::Duration interval = absl::Seconds(1);        // between two messages while the queue is short
  absl::Duration timeout = absl::Seconds(10);        // of one message, from the connection to the answer
  absl::Duration longest_pause = absl::Seconds(30);  // after messages that the collector did not take
};

}  // namespace somnus
