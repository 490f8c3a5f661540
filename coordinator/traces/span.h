#pragma once
// A span of a trace, and spans as OTLP's JSON (opentelemetry-proto, trace.proto; in JSON ids are hexadecimal,
// and 64-bit integers are strings). Values; pure.

#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/time/time.h"

namespace somnus {

enum class SpanKind { kInternal = 1, kServer = 2 };  // as OTLP numbers them

struct Span {
  std::string trace_id;  // as of TraceContext
  std::string span_id;
  std::string parent_id;  // empty: the root of the trace
  std::string state;      // as of TraceContext
  std::string name;
  SpanKind kind = SpanKind::kInternal;
  absl::Time begin, end;  // by the wall clock
  using Value = std::variant<std::string, int64_t, double, std::vector<std::string>>;
  std::vector<std::pair<std::string, Value>> attributes;
  bool failed = false;
};

// An ExportTraceServiceRequest with the spans of one service. Bytes that are no UTF-8 are replaced.
std::string OtlpJson(const std::string& service_name, const std::vector<Span>& spans);

}  // namespace somnus
