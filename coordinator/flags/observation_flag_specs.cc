// The coordinator's flags for those who watch the server: measurements, the access log, and traces.
#include "coordinator/flags/flag_specs.h"

namespace somnus {

FlagGroup ObservationFlags(Flags* f) {
  return {
      "Observation",
      {
          Flag::Text("access-log", &f->access_log,
                     "file to which a JSON line about each request is appended; -: stdout")
              .Shows("FILE|-"),
          Flag::Int(
              "request-history", &f->request_history, 0, 1 << 17,
              "ended requests of each model of which the server tells what has happened (GET /requests, "
              "somnus explain); each takes about a KiB, and with the default of --max-request-events 25 KiB "
              "at most"),
          Flag::Int(
              "max-request-events", &f->max_request_events, 8, 1 << 9,
              "events that the server remembers of each request, besides its end; further ones are counted"),
          Flag::Int("max-viewed-requests", &f->engine.max_viewed_requests, 0, 1 << 14,
                    "requests in the picture of the engine that the console and GET /status draw"),
          Flag::Switch(
              "expert-load-metrics", &f->expert_load_metrics,
              "/metrics says how many tokens the router sent to each expert (somnus:expert_tokens_total: a "
              "series for each expert of each layer) and how unequal the load is "
              "(somnus:expert_load_imbalance)"),
          Flag::Switch("kv-cache-metrics", &f->kv_cache_metrics,
                       "/metrics says how long blocks stay in the KV cache (vllm:kv_block_*)"),
          Flag::Number("kv-cache-metrics-sample", &f->kv_cache_metrics_sample, 0, 1,
                       "share of the blocks that are measured for that"),
          Flag::Text(
              "otlp-traces-endpoint", &f->traces.endpoint,
              "http://HOST:PORT of an OpenTelemetry collector, which gets spans of requests as JSON by "
              "HTTP, at /v1/traces where the URL has no path")
              .Shows("URL")
              .Default("as the standard OTEL_EXPORTER_OTLP_* variables say, else none"),
          Flag::Number("otlp-traces-sample", &f->traces.sample, 0, 1,
                       "share of the requests that are traced among those without a traceparent, which says "
                       "so itself"),
          Flag::Int("otlp-traces-queue", &f->traces.max_queued_spans, 16, 1 << 20,
                    "spans that wait for the collector; more are dropped and counted"),
          Flag::Time("otlp-traces-timeout", &f->traces.timeout, kShortestTimeFlag, kLongestTimeFlag,
                     "of one message to the collector"),
      }};
}

}  // namespace somnus
