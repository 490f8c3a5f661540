#pragma once
// The standard environment variables of OpenTelemetry (specification: "OpenTelemetry Environment Variable"
// and "OTLP Exporter Configuration"), as far as they are about spans that go to a collector by HTTP.

#include "absl/status/status.h"
#include "base/discovery.h"
#include "coordinator/traces/trace_options.h"

namespace somnus {

// Fills what `options` does not have from OTEL_EXPORTER_OTLP_TRACES_ENDPOINT or OTEL_EXPORTER_OTLP_ENDPOINT,
// and takes the name from OTEL_SERVICE_NAME. OTEL_SDK_DISABLED=true turns traces off, unless the endpoint was
// given by a flag. Checks the endpoint, and completes its path. InvalidArgument names the flag or the
// variable.
absl::Status AddTraceEnvironment(const Environment& environment, TraceExportOptions* options);

}  // namespace somnus
