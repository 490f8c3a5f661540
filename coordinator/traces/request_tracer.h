#pragma once
// Makes spans of the requests that compute tokens, as far as requests are sampled: a request with a
// traceparent as its client says there, and of the others a share. Thread safe.

#include <memory>
#include <utility>

#include "coordinator/records/request_recorder.h"
#include "coordinator/traces/span_exporter.h"

namespace somnus {

class RequestTracer : public RequestRecorder {
 public:
  // `sample`: the share of requests without a traceparent.
  RequestTracer(double sample, std::shared_ptr<SpanExporter> exporter)
      : sample_(sample), exporter_(std::move(exporter)) {}

  void Record(const RequestRecord& record) override;

 private:
  const double sample_;
  const std::shared_ptr<SpanExporter> exporter_;
};

}  // namespace somnus
