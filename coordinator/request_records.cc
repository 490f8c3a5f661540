#include "coordinator/request_records.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "coordinator/records/access_log.h"
#include "coordinator/traces/collector_client.h"
#include "coordinator/traces/request_tracer.h"

namespace somnus {
namespace {

absl::StatusOr<std::shared_ptr<AccessLog>> OpenAccessLog(const Flags& flags, Metrics* metrics) {
  absl::StatusOr<std::unique_ptr<AccessLog>> opened =
      AccessLog::Open(flags.access_log, flags.log_queue_bytes);
  if (!opened.ok())
    return absl::Status(opened.status().code(), absl::StrCat("--access-log: ", opened.status().message()));
  std::shared_ptr<AccessLog> log = *std::move(opened);
  metrics->AddSource({.name = "somnus:access_log_lines_dropped_total",
                      .help = "Lines of the access log that were not written.",
                      .count = [log] { return log->num_dropped(); }});
  return log;
}

// Each of the numbers that spans have.
void AddSources(const std::shared_ptr<SpanExporter>& exporter, Metrics* metrics) {
  metrics->AddSource({.name = "somnus:trace_spans_exported_total",
                      .help = "Spans that the collector has taken.",
                      .count = [exporter] { return exporter->counts().exported; }});
  metrics->AddSource({.name = "somnus:trace_exports_failed_total",
                      .help = "Messages with spans that the collector has not taken, now or at all.",
                      .count = [exporter] { return exporter->counts().failed_sends; }});
  const std::pair<const char*, int64_t SpanExporter::Counts::*> reasons[] = {
      {"queue_full", &SpanExporter::Counts::dropped_full},
      {"refused", &SpanExporter::Counts::dropped_refused}};
  for (const auto& [reason, member] : reasons) {
    metrics->AddSource({.name = "somnus:trace_spans_dropped_total",
                        .help = "Spans that were not sent, by reason.",
                        .labels = {{"reason", reason}},
                        .count = [exporter, member = member] { return exporter->counts().*member; }});
  }
}

absl::StatusOr<std::shared_ptr<SpanExporter>> StartExporter(const TraceExportOptions& options,
                                                            Metrics* metrics) {
  ASSIGN_OR_RETURN(CollectorUrl url, ParseCollectorUrl(options.endpoint));
  auto exporter = std::make_shared<SpanExporter>(options, std::make_unique<CollectorClient>(std::move(url)));
  AddSources(exporter, metrics);
  LogInfo("traces: spans of requests go to {}, as those of {}", options.endpoint, options.service_name);
  return exporter;
}

}  // namespace

absl::StatusOr<std::unique_ptr<RequestRecords>> RequestRecords::Start(const Flags& flags, Metrics* metrics) {
  std::unique_ptr<RequestRecords> records(new RequestRecords());
  std::vector<std::shared_ptr<RequestRecorder>> recorders;
  if (!flags.access_log.empty()) {
    ASSIGN_OR_RETURN(auto log, OpenAccessLog(flags, metrics));
    recorders.push_back(std::move(log));
  }
  if (!flags.traces.passed_over.empty()) LogWarning("traces: none are sent: {}", flags.traces.passed_over);
  if (!flags.traces.endpoint.empty()) {
    ASSIGN_OR_RETURN(records->exporter_, StartExporter(flags.traces, metrics));
    recorders.push_back(std::make_shared<RequestTracer>(flags.traces.sample, records->exporter_));
  }
  if (!recorders.empty()) records->recorder_ = std::make_shared<RequestRecorders>(std::move(recorders));
  return records;
}

void RequestRecords::Finish(absl::Duration grace) {
  if (exporter_ != nullptr) exporter_->Shutdown(grace);
}

}  // namespace somnus
