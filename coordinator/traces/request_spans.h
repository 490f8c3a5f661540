#pragma once
// The spans of a request: the request itself, and within it the time in the queue, in prefill and in decode,
// as far as the request came. Names and attributes are vLLM's (vllm/tracing), beside the attributes of
// OpenTelemetry's conventions for generative AI, HTTP and RPC.

#include <vector>

#include "coordinator/records/request_record.h"
#include "coordinator/traces/span.h"
#include "coordinator/traces/trace_context.h"

namespace somnus {

// The first span is the request's. `context`: where the request stands; without a parent_id the request is
// the root of the trace.
std::vector<Span> SpansOf(const RequestRecord& record, const TraceContext& context);

}  // namespace somnus
