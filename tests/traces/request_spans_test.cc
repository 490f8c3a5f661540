// Requests become spans, and spans become OTLP's JSON.

#include "coordinator/traces/request_spans.h"

#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "coordinator/traces/request_tracer.h"

namespace somnus {
namespace {

using Json = nlohmann::json;

const absl::Time kStart = absl::UnixEpoch() + absl::Hours(1000);
absl::Time At(double seconds) { return kStart + absl::Seconds(seconds); }

RequestRecord Record() {
  RequestRecord record;
  record.protocol = "http";
  record.client = "10.0.0.7:5123";
  record.method = "POST";
  record.route = "/v1/chat/completions";
  record.generates = true;
  record.status = 200;
  record.begin = At(0);
  record.end = At(10);
  RequestSummary& summary = record.summary.emplace();
  summary.response_id = "chatcmpl-1";
  summary.model = "m";
  summary.finish_reason = "stop";
  summary.num_choices = 2;
  summary.max_tokens = 64;
  summary.prompt_tokens = 12;
  summary.completion_tokens = 34;
  summary.cached_tokens = 8;
  summary.arrival = At(1);
  summary.moments = {.scheduled = At(2), .first_token = At(4)};
  summary.ended = At(9);
  return record;
}

const TraceContext kContext = {"4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7", true};

const Span::Value* Find(const Span& span, const std::string& key) {
  for (const auto& [name, value] : span.attributes) {
    if (name == key) return &value;
  }
  return nullptr;
}
template <typename T>
T Get(const Span& span, const std::string& key) {
  const Span::Value* value = Find(span, key);
  return value == nullptr ? T() : std::get<T>(*value);
}

TEST(RequestSpansTest, ARequestHasItsPhasesAsChildren) {
  const std::vector<Span> spans = SpansOf(Record(), kContext);
  ASSERT_EQ(spans.size(), 4u);
  const Span& request = spans[0];
  EXPECT_EQ(request.name, "llm_request");
  EXPECT_EQ(request.kind, SpanKind::kServer);
  EXPECT_EQ(request.trace_id, kContext.trace_id);
  EXPECT_EQ(request.parent_id, kContext.parent_id);
  EXPECT_EQ(request.begin, At(0));
  EXPECT_EQ(request.end, At(10));
  EXPECT_FALSE(request.failed);
  const struct {
    const char* name;
    absl::Time begin, end;
  } phases[] = {{"queue", At(1), At(2)}, {"prefill", At(2), At(4)}, {"decode", At(4), At(9)}};
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(spans[i + 1].name, phases[i].name);
    EXPECT_EQ(spans[i + 1].begin, phases[i].begin);
    EXPECT_EQ(spans[i + 1].end, phases[i].end);
    EXPECT_EQ(spans[i + 1].trace_id, kContext.trace_id);
    EXPECT_EQ(spans[i + 1].parent_id, request.span_id);
    EXPECT_NE(spans[i + 1].span_id, request.span_id);
  }
}

TEST(RequestSpansTest, AttributesHaveTheNamesOfVllmAndOfTheConventions) {
  const Span request = SpansOf(Record(), kContext)[0];
  EXPECT_EQ(Get<int64_t>(request, "gen_ai.usage.prompt_tokens"), 12);
  EXPECT_EQ(Get<int64_t>(request, "gen_ai.usage.input_tokens"), 12);
  EXPECT_EQ(Get<int64_t>(request, "gen_ai.usage.completion_tokens"), 34);
  EXPECT_EQ(Get<int64_t>(request, "gen_ai.request.max_tokens"), 64);
  EXPECT_EQ(Get<int64_t>(request, "gen_ai.request.n"), 2);
  EXPECT_EQ(Get<std::string>(request, "gen_ai.request.id"), "chatcmpl-1");
  EXPECT_EQ(Get<std::string>(request, "gen_ai.operation.name"), "chat");
  EXPECT_EQ(Get<std::vector<std::string>>(request, "gen_ai.response.finish_reasons"),
            std::vector<std::string>{"stop"});
  EXPECT_EQ(Get<double>(request, "gen_ai.latency.time_in_queue"), 1);
  EXPECT_EQ(Get<double>(request, "gen_ai.latency.time_to_first_token"), 3);
  EXPECT_EQ(Get<double>(request, "gen_ai.latency.time_in_model_decode"), 5);
  EXPECT_EQ(Get<double>(request, "gen_ai.latency.e2e"), 8);
  EXPECT_EQ(Get<int64_t>(request, "http.response.status_code"), 200);
  EXPECT_EQ(Get<std::string>(request, "client.address"), "10.0.0.7");
}

TEST(RequestSpansTest, ARequestThatWasAbortedInTheQueueHasNoOtherPhase) {
  RequestRecord record = Record();
  record.status = 499;
  record.summary->moments = {};
  record.summary->ended = absl::InfinitePast();
  const std::vector<Span> spans = SpansOf(record, kContext);
  ASSERT_EQ(spans.size(), 2u);
  EXPECT_EQ(spans[1].name, "queue");
  EXPECT_EQ(spans[1].end, At(10));
  EXPECT_EQ(Find(spans[0], "gen_ai.latency.time_to_first_token"), nullptr);
  EXPECT_FALSE(spans[0].failed) << "the client is to blame";
}

TEST(RequestSpansTest, ARefusedRequestIsOneSpan) {
  RequestRecord record = Record();
  record.summary.reset();
  record.status = 503;
  const std::vector<Span> spans = SpansOf(record, kContext);
  ASSERT_EQ(spans.size(), 1u);
  EXPECT_TRUE(spans[0].failed);
  record.status = 429;
  EXPECT_FALSE(SpansOf(record, kContext)[0].failed);
  record.protocol = "grpc";
  record.status = 14;  // UNAVAILABLE
  EXPECT_TRUE(SpansOf(record, kContext)[0].failed);
}

TEST(OtlpJsonTest, HasTheFormOfTheProtocol) {
  const Json json = Json::parse(OtlpJson("chat", SpansOf(Record(), kContext)));
  const Json& of_resource = json["resourceSpans"][0];
  EXPECT_EQ(of_resource["resource"]["attributes"][0]["key"], "service.name");
  EXPECT_EQ(of_resource["resource"]["attributes"][0]["value"]["stringValue"], "chat");
  const Json& spans = of_resource["scopeSpans"][0]["spans"];
  ASSERT_EQ(spans.size(), 4u);
  EXPECT_EQ(spans[0]["traceId"], kContext.trace_id);
  EXPECT_EQ(spans[0]["parentSpanId"], kContext.parent_id);
  EXPECT_EQ(spans[0]["kind"], 2);
  EXPECT_EQ(spans[0]["startTimeUnixNano"], "3600000000000000") << "a 64-bit integer is a string";
  std::map<std::string, Json> values;
  for (const Json& attribute : spans[0]["attributes"]) values[attribute["key"]] = attribute["value"];
  EXPECT_EQ(values["gen_ai.usage.prompt_tokens"]["intValue"], "12");
  EXPECT_EQ(values["gen_ai.request.temperature"]["doubleValue"], 1.0);
  EXPECT_EQ(values["gen_ai.response.finish_reasons"]["arrayValue"]["values"][0]["stringValue"], "stop");
  EXPECT_EQ(spans[0].count("status"), 0u);
}

TEST(OtlpJsonTest, AnyBytesOfAClientMakeJson) {
  RequestRecord record = Record();
  record.summary->response_id = std::string("a\"\r\n\xff\0b", 7) + std::string(5000, 'x');
  const std::string text = OtlpJson("s", SpansOf(record, kContext));
  EXPECT_FALSE(Json::parse(text, nullptr, /*allow_exceptions=*/false).is_discarded());
  EXPECT_LT(text.size(), 8000u) << "texts of clients are cut";
}

class CountingSender : public SpanSender {
 public:
  explicit CountingSender(int* num_spans) : num_spans_(*num_spans) {}
  absl::Status Send(const std::string& body, absl::Duration /*timeout*/) override {
    num_spans_ += static_cast<int>(Json::parse(body)["resourceSpans"][0]["scopeSpans"][0]["spans"].size());
    return absl::OkStatus();
  }
  void Cancel() override {}

 private:
  int& num_spans_;
};

int NumSpans(double sample, const std::vector<RequestRecord>& records) {
  int num_spans = 0;
  const auto exporter =
      std::make_shared<SpanExporter>(TraceExportOptions(), std::make_unique<CountingSender>(&num_spans));
  RequestTracer tracer(sample, exporter);
  for (const RequestRecord& record : records) tracer.Record(record);
  exporter->Shutdown(absl::Seconds(60));
  return num_spans;
}

TEST(RequestTracerTest, AClientsFlagDecidesAndElseTheShare) {
  RequestRecord asks = Record(), declines = Record(), says_nothing = Record();
  asks.traceparent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
  declines.traceparent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00";
  EXPECT_EQ(NumSpans(0, {asks}), 4);
  EXPECT_EQ(NumSpans(1, {declines}), 0);
  EXPECT_EQ(NumSpans(0, {says_nothing}), 0);
  EXPECT_EQ(NumSpans(1, {says_nothing}), 4);
  const int half = NumSpans(0.5, std::vector<RequestRecord>(400, says_nothing)) / 4;
  EXPECT_GT(half, 120);
  EXPECT_LT(half, 280);
}

TEST(RequestTracerTest, RequestsThatComputeNothingAreNotTraced) {
  RequestRecord record = Record();
  record.generates = false;
  EXPECT_EQ(NumSpans(1, {record}), 0);
}

}  // namespace
}  // namespace somnus
