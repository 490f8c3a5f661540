#pragma once
// Where a request stands in its client's trace (W3C Trace Context, level 1, the header `traceparent`).
// Values.

#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace somnus {

struct TraceContext {
  std::string trace_id;   // 32 hexadecimal digits, lower case, not all 0
  std::string parent_id;  // the client's span: 16 digits likewise
  bool sampled = false;   // the client wants spans
};

// Reads "00-TRACE-PARENT-FLAGS"; of a later version the part that this version has. Nullopt: the text is no
// context, and the specification says that it counts as none.
std::optional<TraceContext> ParseTraceparent(absl::string_view text);

// New ids, of random digits.
std::string NewTraceId();
std::string NewSpanId();

}  // namespace somnus
