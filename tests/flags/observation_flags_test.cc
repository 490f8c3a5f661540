// Flags of the access log, of measurements and of traces.

#include <gtest/gtest.h>

#include <string>

#include "absl/strings/match.h"
#include "coordinator/flags/flags.h"

namespace somnus {
namespace {

TEST(ObservationFlagsTest, NothingIsWrittenDownOrMeasuredUnlessAFlagSaysSo) {
  const auto flags = ParseFlags({"m"});
  ASSERT_TRUE(flags.ok()) << flags.status();
  EXPECT_EQ(flags->access_log, "");
  EXPECT_EQ(flags->traces.endpoint, "");
  EXPECT_FALSE(flags->kv_cache_metrics);
}

TEST(ObservationFlagsTest, FlagsAndVariables) {
  const auto flags = ParseFlags({"m", "--access-log=-", "--kv-cache-metrics", "--kv-cache-metrics-sample=0.5",
                                 "--otlp-traces-endpoint=http://otel:4318", "--otlp-traces-sample=0.1",
                                 "--otlp-traces-queue=100", "--otlp-traces-timeout=2s"},
                                {{"OTEL_SERVICE_NAME", "chat"}});
  ASSERT_TRUE(flags.ok()) << flags.status();
  EXPECT_EQ(flags->access_log, "-");
  EXPECT_TRUE(flags->kv_cache_metrics);
  EXPECT_EQ(flags->kv_cache_metrics_sample, 0.5);
  EXPECT_EQ(flags->traces.endpoint, "http://otel:4318/v1/traces");
  EXPECT_EQ(flags->traces.service_name, "chat");
  EXPECT_EQ(flags->traces.sample, 0.1);
  EXPECT_EQ(flags->traces.max_queued_spans, 100);
  EXPECT_EQ(flags->traces.timeout, absl::Seconds(2));
  const auto variable = ParseFlags({"m"}, {{"OTEL_EXPORTER_OTLP_ENDPOINT", "http://otel:4318"}});
  EXPECT_EQ(variable->traces.endpoint, "http://otel:4318/v1/traces");
}

TEST(ObservationFlagsTest, AWrongEndpointNamesTheFlag) {
  const absl::Status status = ParseFlags({"m", "--otlp-traces-endpoint=grpc://otel:4317"}).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_TRUE(absl::StrContains(status.message(), "--otlp-traces-endpoint")) << status;
}

}  // namespace
}  // namespace somnus
