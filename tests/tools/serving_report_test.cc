#include <gtest/gtest.h>

#include <vector>

#include "tools/bench/serving/report.h"

namespace somnus::bench {
namespace {

RequestRecord Answered(double start, double first, double end, int32_t tokens) {
  RequestRecord record;
  record.start_s = start;
  record.first_token_s = first;
  record.end_s = end;
  record.prompt_tokens = 10;
  record.output_tokens = tokens;
  return record;
}

TEST(ServingReportTest, PercentilesInterpolate) {
  const Distribution d = Summarize({4, 1, 3, 2});
  EXPECT_EQ(d.count, 4);
  EXPECT_DOUBLE_EQ(d.mean, 2.5);
  EXPECT_DOUBLE_EQ(d.median, 2.5);
  EXPECT_DOUBLE_EQ(d.p99, 3.97);
  EXPECT_DOUBLE_EQ(d.max, 4);
  EXPECT_EQ(Summarize({}).count, 0);
}

TEST(ServingReportTest, RatesLatenciesAndGoodput) {
  RequestRecord failed = Answered(0, 0, 4, 0);
  failed.error = "http 503";
  const std::vector<RequestRecord> records = {Answered(1, 1.5, 2.5, 11), Answered(1, 3, 5, 5),
                                              Answered(2, 2.1, 2.1, 1), failed};
  const Report report = MakeReport(records, Goodput{.ttft_ms = 600, .tpot_ms = 150});
  EXPECT_EQ(report.completed, 3);
  EXPECT_EQ(report.errors.at("http 503"), 1);
  EXPECT_DOUBLE_EQ(report.duration_s, 5);
  EXPECT_DOUBLE_EQ(report.output_tokens_per_s, 17 / 5.0);
  EXPECT_DOUBLE_EQ(report.total_tokens_per_s, 47 / 5.0);
  EXPECT_NEAR(report.ttft.median, 500, 1e-9);
  EXPECT_EQ(report.tpot.count, 2);  // an answer of one token has none
  EXPECT_NEAR(report.tpot.mean, (100 + 500) / 2.0, 1e-9);
  EXPECT_NEAR(report.good_fraction, 2 / 4.0, 1e-12);  // the failed request is not good
}

}  // namespace
}  // namespace somnus::bench
