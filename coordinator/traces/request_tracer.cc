#include "coordinator/traces/request_tracer.h"

#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/numbers.h"
#include "coordinator/traces/request_spans.h"
#include "coordinator/traces/trace_context.h"

namespace somnus {
namespace {

// By the last digits of the trace's id, which are random: services that divide likewise choose alike.
bool IsSampled(const std::string& trace_id, double share) {
  constexpr size_t kDigits = 12;
  uint64_t number = 0;
  (void)absl::SimpleHexAtoi(trace_id.substr(trace_id.size() - kDigits), &number);
  return static_cast<double>(number) < share * 0x1p48;
}

}  // namespace

void RequestTracer::Record(const RequestRecord& record) {
  if (!record.generates) return;
  std::optional<TraceContext> context = ParseTraceparent(record.traceparent);
  if (context.has_value()) {
    context->state = ParseTracestate(record.tracestate);
  } else {
    context.emplace().trace_id = NewTraceId();
    context->sampled = IsSampled(context->trace_id, sample_);
  }
  if (context->sampled) exporter_->Add(SpansOf(record, *context));
}

}  // namespace somnus
