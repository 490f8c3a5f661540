#include "coordinator/traces/request_spans.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/string_view.h"

namespace somnus {
namespace {

constexpr size_t kMaxTextBytes = 256;

bool HasCome(absl::Time moment) { return moment != absl::InfinitePast(); }

std::string Cut(const std::string& text) { return text.substr(0, kMaxTextBytes); }

// By the conventions: a span of a server has failed where the server is to blame.
bool HasFailed(const RequestRecord& record) {
  if (record.protocol == "http") return record.status >= 500;
  constexpr int kBlamed[] = {2, 4, 12, 13, 14, 15};  // UNKNOWN, DEADLINE_EXCEEDED, UNIMPLEMENTED, ...
  return std::find(std::begin(kBlamed), std::end(kBlamed), record.status) != std::end(kBlamed);
}

void AddCall(const RequestRecord& record, Span* span) {
  const auto add = [span](const char* key, Span::Value value) {
    span->attributes.emplace_back(key, std::move(value));
  };
  if (record.protocol == "http") {
    add("http.request.method", record.method);
    add("http.route", record.route);
    add("http.response.status_code", int64_t{record.status});
  } else {
    add("rpc.system", std::string("grpc"));
    add("rpc.service", record.route);
    add("rpc.method", record.method);
    add("rpc.grpc.status_code", int64_t{record.status});
  }
  if (!record.client.empty()) add("client.address", record.client.substr(0, record.client.rfind(':')));
  if (!record.request_id.empty()) add("http.request.header.x-request-id", Cut(record.request_id));
}

// By the conventions. Of gRPC's calls the prompt may be a chat's: only the client knows.
std::string OperationOf(const RequestRecord& record) {
  for (const char* const chat : {"chat", "responses", "messages"}) {
    if (absl::StrContains(record.route, chat)) return "chat";
  }
  const bool embeds = record.method == "Embed" || absl::StrContains(record.route, "embeddings") ||
                      absl::StrContains(record.route, "pooling");
  return embeds ? "embeddings" : "text_completion";
}

void AddGeneration(const RequestRecord& record, const RequestSummary& summary, Span* span) {
  const auto add = [span](const char* key, Span::Value value) {
    span->attributes.emplace_back(key, std::move(value));
  };
  add("gen_ai.operation.name", OperationOf(record));
  add("gen_ai.provider.name", std::string("somnus"));
  add("gen_ai.request.model", summary.model);
  add("gen_ai.response.model", summary.model);
  add("gen_ai.request.id", Cut(summary.response_id));
  add("gen_ai.response.id", Cut(summary.response_id));
  add("gen_ai.request.max_tokens", int64_t{summary.max_tokens});
  add("gen_ai.request.temperature", summary.temperature);
  add("gen_ai.request.top_p", summary.top_p);
  add("gen_ai.request.n", int64_t{summary.num_choices});
  add("gen_ai.usage.num_sequences", int64_t{summary.num_choices});
  add("gen_ai.usage.prompt_tokens", summary.prompt_tokens);
  add("gen_ai.usage.completion_tokens", summary.completion_tokens);
  add("gen_ai.usage.input_tokens", summary.prompt_tokens);
  add("gen_ai.usage.output_tokens", summary.completion_tokens);
  add("gen_ai.usage.cache_read.input_tokens", summary.cached_tokens);
  if (!summary.finish_reason.empty())
    add("gen_ai.response.finish_reasons", std::vector<std::string>{summary.finish_reason});
}

// One after the other, without gaps: what has not begun has no phase, and what has not ended ends with the
// request.
class Phases {
 public:
  Phases(const RequestRecord& record, const RequestSummary& summary) {
    end_ = HasCome(summary.ended) ? summary.ended : record.end;
    const absl::Time scheduled = summary.moments.scheduled, first = summary.moments.first_token;
    Add("queue", "gen_ai.latency.time_in_queue", summary.arrival, scheduled);
    Add("prefill", "gen_ai.latency.time_in_model_prefill", scheduled, first);
    Add("decode", "gen_ai.latency.time_in_model_decode", first, end_);
    AddLatency("gen_ai.latency.time_to_first_token", summary.arrival, first);
    AddLatency("gen_ai.latency.time_in_model_inference", scheduled, end_);
    AddLatency("gen_ai.latency.e2e", summary.arrival, end_);
  }

  // The request's span gets the latencies, and the phases become its children.
  void AddTo(std::vector<Span>* spans) && {
    Span& request = spans->front();
    request.attributes.insert(request.attributes.end(), latencies_.begin(), latencies_.end());
    for (Span& phase : phases_) {
      phase.trace_id = request.trace_id;
      phase.span_id = NewSpanId();
      phase.parent_id = request.span_id;
      phase.state = request.state;
    }
    spans->insert(spans->end(), std::make_move_iterator(phases_.begin()),
                  std::make_move_iterator(phases_.end()));
  }

 private:
  void Add(const char* name, const char* latency, absl::Time begin, absl::Time end) {
    if (!HasCome(begin)) return;
    Span phase;
    phase.name = name;
    phase.begin = begin;
    phase.end = std::max(begin, HasCome(end) ? end : end_);
    phases_.push_back(std::move(phase));
    AddLatency(latency, begin, end);
  }
  void AddLatency(const char* name, absl::Time begin, absl::Time end) {
    if (HasCome(begin) && HasCome(end))
      latencies_.emplace_back(name, std::max(0.0, absl::ToDoubleSeconds(end - begin)));
  }

  absl::Time end_;
  std::vector<Span> phases_;
  std::vector<std::pair<std::string, Span::Value>> latencies_;
};

}  // namespace

std::vector<Span> SpansOf(const RequestRecord& record, const TraceContext& context) {
  Span request;
  request.trace_id = context.trace_id;
  request.span_id = NewSpanId();
  request.parent_id = context.parent_id;
  request.state = context.state;
  request.name = "llm_request";
  request.kind = SpanKind::kServer;
  request.begin = record.begin;
  request.end = std::max(record.begin, record.end);
  request.failed = HasFailed(record);
  AddCall(record, &request);
  if (record.summary.has_value()) AddGeneration(record, *record.summary, &request);
  std::vector<Span> spans;
  spans.push_back(std::move(request));
  if (record.summary.has_value()) Phases(record, *record.summary).AddTo(&spans);
  return spans;
}

}  // namespace somnus
