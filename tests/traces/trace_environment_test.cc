// Flags, the standard variables, and the URLs of collectors.

#include "coordinator/traces/trace_environment.h"

#include <gtest/gtest.h>

#include <string>

#include "absl/strings/match.h"
#include "coordinator/traces/collector_url.h"

namespace somnus {
namespace {

TraceExportOptions Of(const std::string& flag, const Environment& environment) {
  TraceExportOptions options{.endpoint = flag};
  const absl::Status status = AddTraceEnvironment(environment, &options);
  EXPECT_TRUE(status.ok()) << status;
  return options;
}

TEST(TraceEnvironmentTest, NothingIsSentUnlessSomebodySaysWhere) {
  EXPECT_EQ(Of("", {}).endpoint, "");
  EXPECT_EQ(Of("", {{"OTEL_SERVICE_NAME", "chat"}}).endpoint, "");
}

TEST(TraceEnvironmentTest, TheEndpointOfAllSignalsIsABase) {
  const Environment base = {{"OTEL_EXPORTER_OTLP_ENDPOINT", "http://otel:4318/"}};
  EXPECT_EQ(Of("", base).endpoint, "http://otel:4318/v1/traces");
  const Environment both = {{"OTEL_EXPORTER_OTLP_ENDPOINT", "http://otel:4318"},
                            {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://spans:4318/in"},
                            {"OTEL_SERVICE_NAME", "chat"}};
  EXPECT_EQ(Of("", both).endpoint, "http://spans:4318/in");
  EXPECT_EQ(Of("", both).service_name, "chat");
}

TEST(TraceEnvironmentTest, TheFlagGoesFirst) {
  const Environment other = {{"OTEL_EXPORTER_OTLP_ENDPOINT", "http://otel:4318"},
                             {"OTEL_SDK_DISABLED", "true"}};
  EXPECT_EQ(Of("http://here:1", other).endpoint, "http://here:1/v1/traces");
  EXPECT_EQ(Of("http://here:1/", other).endpoint, "http://here:1/v1/traces");
  EXPECT_EQ(Of("http://here:1/a", other).endpoint, "http://here:1/a");
  EXPECT_EQ(Of("", other).endpoint, "") << "disabled";
}

TEST(TraceEnvironmentTest, AWrongFlagIsAnErrorAndAWrongVariableIsPassedOver) {
  TraceExportOptions options;
  options.endpoint = "https://otel:4318";
  const absl::Status status = AddTraceEnvironment({}, &options);
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_TRUE(absl::StrContains(status.message(), "--otlp-traces-endpoint")) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "plain HTTP")) << status;
  const Environment secure = {{"OTEL_EXPORTER_OTLP_ENDPOINT", "https://otel:4318"}};
  EXPECT_EQ(Of("", secure).endpoint, "");
  EXPECT_TRUE(absl::StrContains(Of("", secure).passed_over, "OTEL_EXPORTER_OTLP_ENDPOINT"));
  const Environment grpc = {{"OTEL_EXPORTER_OTLP_ENDPOINT", "http://otel:4317"},
                            {"OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"}};
  EXPECT_EQ(Of("", grpc).endpoint, "");
  EXPECT_TRUE(absl::StrContains(Of("", grpc).passed_over, "OTEL_EXPORTER_OTLP_PROTOCOL: 'grpc'"));
  const Environment http = {{"OTEL_EXPORTER_OTLP_ENDPOINT", "http://otel:4318"},
                            {"OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf"}};
  EXPECT_EQ(Of("", http).endpoint, "http://otel:4318/v1/traces") << "collectors take JSON at the same port";
}

TEST(CollectorUrlTest, HostPortAndPath) {
  const auto url = ParseCollectorUrl("http://otel.example:4318/v1/traces?x=1");
  ASSERT_TRUE(url.ok()) << url.status();
  EXPECT_EQ(url->host, "otel.example");
  EXPECT_EQ(url->port, 4318);
  EXPECT_EQ(url->path, "/v1/traces?x=1");
  EXPECT_EQ(url->authority(), "otel.example:4318");
  EXPECT_EQ(ParseCollectorUrl("HTTP://h")->port, 80);
  EXPECT_EQ(ParseCollectorUrl("http://h")->path, "/");
  const auto v6 = ParseCollectorUrl("http://[::1]:99/a");
  ASSERT_TRUE(v6.ok()) << v6.status();
  EXPECT_EQ(v6->host, "::1");
  EXPECT_EQ(v6->authority(), "[::1]:99");
  EXPECT_EQ(ParseCollectorUrl("http://[::1]")->port, 80);
}

TEST(CollectorUrlTest, AnythingElseIsRefused) {
  for (const char* text : {"", "otel:4318", "grpc://otel:4317", "http://", "http://:80", "http://h:0",
                           "http://h:65536", "http://h:x", "http://u:p@h/", "http://h/a b",
                           "http://h/\r\nX: y", "http://h?x=1", "http://h/#a", "http://[::1"})
    EXPECT_TRUE(absl::IsInvalidArgument(ParseCollectorUrl(text).status())) << text;
}

}  // namespace
}  // namespace somnus
