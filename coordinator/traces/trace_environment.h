#pragma once
// The standard environment variables of OpenTelemetry (specification: "OpenTelemetry Environment Variable"
// and "OTLP Exporter Configuration"), as far as they are about spans that go to a collector by HTTP.

#include "absl/status/status.h"
#include "base/discovery.h"
#include "coordinator/traces/trace_options.h"

namespace somnus {

// Fills what `options` does not have from OTEL_EXPORTER_OTLP_TRACES_ENDPOINT or OTEL_EXPORTER_OTLP_ENDPOINT,
// and takes the name from OTEL_SERVICE_NAME. OTEL_SDK_DISABLED=true turns traces off, unless a flag has given
// the endpoint. Completes the path of the endpoint. InvalidArgument: the flag's endpoint is wrong. Variables
// are often set for all programs of a cluster: an endpoint of the environment that cannot be used, such as an
// endpoint of gRPC, is passed over, and options->passed_over says why.
absl::Status AddTraceEnvironment(const Environment& environment, TraceExportOptions* options);

}  // namespace somnus
