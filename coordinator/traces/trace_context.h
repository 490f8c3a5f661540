#pragma once
// Where a request stands in its client's trace (W3C Trace Context, level 1, the headers `traceparent` and
// `tracestate`). Values.

#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace somnus {

struct TraceContext {
  std::string trace_id;   // 32 hexadecimal digits, lower case, not all 0
  std::string parent_id;  // the client's span: 16 digits likewise
  bool sampled = false;   // the client wants spans
  std::string state;      // what tracing systems say to each other, which spans pass on as it is; or empty
};

// Reads "00-TRACE-PARENT-FLAGS"; of a later version the part that this version has. Nullopt: the text is no
// context, and the specification says that it counts as none.
std::optional<TraceContext> ParseTraceparent(absl::string_view text);

// Reads "KEY=VALUE,KEY=VALUE" and returns the members, of several headers the members of all. Empty: the text
// is no such list, or has more than 32 members or 512 bytes, and counts as none.
std::string ParseTracestate(absl::string_view text);

// New ids, of random digits.
std::string NewTraceId();
std::string NewSpanId();

}  // namespace somnus
