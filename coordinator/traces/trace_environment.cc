#include "coordinator/traces/trace_environment.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "coordinator/traces/collector_url.h"

namespace somnus {
namespace {

constexpr char kTracesPath[] = "/v1/traces";

std::string Value(const Environment& environment, const std::string& name) {
  const auto found = environment.find(name);
  return found == environment.end() ? "" : found->second;
}

// The variable for traces goes before the variable for all signals. `name`: of the variable with the value.
std::string ValueForTraces(const Environment& environment, const std::string& what, std::string* name) {
  for (const char* const signal : {"TRACES_", ""}) {
    *name = absl::StrCat("OTEL_EXPORTER_OTLP_", signal, what);
    if (const std::string value = Value(environment, *name); !value.empty()) return value;
  }
  return "";
}

void AddPath(std::string* endpoint) {
  while (absl::EndsWith(*endpoint, "/")) endpoint->pop_back();
  *endpoint += kTracesPath;
}

// The endpoint of the environment, checked; empty: there is none.
absl::StatusOr<std::string> EndpointOf(const Environment& environment) {
  if (absl::EqualsIgnoreCase(Value(environment, "OTEL_SDK_DISABLED"), "true")) return "";
  std::string name, protocol_name;
  std::string endpoint = ValueForTraces(environment, "ENDPOINT", &name);
  if (endpoint.empty()) return "";
  const std::string protocol = ValueForTraces(environment, "PROTOCOL", &protocol_name);
  if (!protocol.empty() && !absl::StartsWith(protocol, "http/")) {
    return absl::InvalidArgumentError(
        absl::StrCat(protocol_name, ": '", protocol,
                     "' is not spoken here; spans go in JSON to a collector's port for HTTP (http/json)"));
  }
  // To the endpoint of all signals each signal adds its path; the endpoint of traces is whole.
  if (!absl::StrContains(name, "_TRACES_")) AddPath(&endpoint);
  if (const auto url = ParseCollectorUrl(endpoint); !url.ok())
    return absl::InvalidArgumentError(absl::StrCat(name, ": ", url.status().message()));
  return endpoint;
}

}  // namespace

absl::Status AddTraceEnvironment(const Environment& environment, TraceExportOptions* options) {
  if (const std::string name = Value(environment, "OTEL_SERVICE_NAME"); !name.empty())
    options->service_name = name;
  if (options->endpoint.empty()) {
    absl::StatusOr<std::string> endpoint = EndpointOf(environment);
    if (endpoint.ok()) {
      options->endpoint = *std::move(endpoint);
    } else {
      options->passed_over = std::string(endpoint.status().message());
    }
    return absl::OkStatus();
  }
  const absl::StatusOr<CollectorUrl> url = ParseCollectorUrl(options->endpoint);
  if (!url.ok())
    return absl::InvalidArgumentError(absl::StrCat("--otlp-traces-endpoint: ", url.status().message()));
  if (url->path == "/") AddPath(&options->endpoint);
  return absl::OkStatus();
}

}  // namespace somnus
