#pragma once
// All that is written down of requests, as the flags say: the access log, and spans for a collector. Thread
// safe.

#include <memory>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "coordinator/flags/flags.h"
#include "coordinator/metrics/metrics.h"
#include "coordinator/records/request_recorder.h"
#include "coordinator/traces/span_exporter.h"

namespace somnus {

class RequestRecords {
 public:
  // Opens the access log, and starts the exporter of spans. `metrics` tells how much was lost of each. An
  // error names the flag.
  static absl::StatusOr<std::unique_ptr<RequestRecords>> Start(const Flags& flags, Metrics* metrics);

  // For the listeners; null: nothing is written down.
  const std::shared_ptr<RequestRecorder>& recorder() const { return recorder_; }
  // Sends the spans that wait, for no longer than `grace`. To be called once no request is open.
  void Finish(absl::Duration grace);

 private:
  RequestRecords() = default;

  std::shared_ptr<RequestRecorder> recorder_;
  std::shared_ptr<SpanExporter> exporter_;  // null: there are no spans
};

}  // namespace somnus
