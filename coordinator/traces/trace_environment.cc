#include "coordinator/traces/trace_environment.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "coordinator/traces/collector_url.h"

namespace somnus {
namespace {

constexpr char kTracesPath[] = "/v1/traces";

std::string Value(const Environment& environment, const std::string& name) {
  const auto found = environment.find(name);
  return found == environment.end() ? "" : found->second;
}

// The variable for traces goes before the one for all signals.
std::string ValueForTraces(const Environment& environment, const std::string& what, std::string* source) {
  for (const char* const signal : {"TRACES_", ""}) {
    *source = absl::StrCat("OTEL_EXPORTER_OTLP_", signal, what);
    if (const std::string value = Value(environment, *source); !value.empty()) return value;
  }
  return "";
}

absl::Status CheckProtocol(const Environment& environment) {
  std::string source;
  const std::string protocol = ValueForTraces(environment, "PROTOCOL", &source);
  if (protocol.empty() || absl::StartsWith(protocol, "http/")) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(source, ": '", protocol,
                   "' is not spoken here; spans go by HTTP, in JSON: http/json, at a collector's "
                   "port for HTTP"));
}

}  // namespace

absl::Status AddTraceEnvironment(const Environment& environment, TraceExportOptions* options) {
  std::string source = "--otlp-traces-endpoint";
  bool adds_path = true;
  if (options->endpoint.empty()) {
    if (absl::EqualsIgnoreCase(Value(environment, "OTEL_SDK_DISABLED"), "true")) return absl::OkStatus();
    options->endpoint = ValueForTraces(environment, "ENDPOINT", &source);
    if (options->endpoint.empty()) return absl::OkStatus();
    RETURN_IF_ERROR(CheckProtocol(environment));
    // The endpoint of all signals is a base, to which each signal adds its path; that of traces is whole.
    adds_path = false;
    if (!absl::StrContains(source, "_TRACES_")) {
      while (absl::EndsWith(options->endpoint, "/")) options->endpoint.pop_back();
      options->endpoint += kTracesPath;
    }
  }
  absl::StatusOr<CollectorUrl> url = ParseCollectorUrl(options->endpoint);
  if (!url.ok()) return absl::InvalidArgumentError(absl::StrCat(source, ": ", url.status().message()));
  if (adds_path && url->path == "/") {
    while (absl::EndsWith(options->endpoint, "/")) options->endpoint.pop_back();
    options->endpoint += kTracesPath;
  }
  if (const std::string name = Value(environment, "OTEL_SERVICE_NAME"); !name.empty())
    options->service_name = name;
  return absl::OkStatus();
}

}  // namespace somnus
