// The report of decode_bench about its samples.

#include "tools/bench/decode/decode_report.h"

#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "tools/bench/median.h"

namespace somnus {
namespace {

RunSample SampleOf(double decode, double peer, bool dropped = false) {
  RunSample sample;
  sample.decode = {.ours = decode, .peer = peer, .step_ms = 2, .of_read = 0.5, .of_peak = 0.25};
  sample.prefill = {.ours = 10 * decode, .step_ms = 30, .of_peak = 0.75};
  sample.read_gbps = 30;
  sample.dropped = dropped;
  return sample;
}

TEST(DecodeReport, TheMedianOfAnEvenNumberIsBetweenTwo) {
  EXPECT_EQ(Median({}), 0);
  EXPECT_EQ(Median({3, 1, 2}), 2);
  EXPECT_EQ(Median({4, 1, 2, 3}), 2.5);
}

TEST(DecodeReport, ARatioIsOfOneRoundAndDroppedSamplesAreCountedOnly) {
  const std::vector<RunSample> samples = {SampleOf(100, 50), SampleOf(900, 10, true), SampleOf(300, 100)};
  const nlohmann::json decode = Summary({4, 128, 64}, false, samples);
  EXPECT_EQ(decode["kind"], "decode");
  EXPECT_EQ(decode["tokens_per_second"], nlohmann::json({100.0, 300.0}));
  EXPECT_EQ(decode["ratio"], nlohmann::json({2.0, 3.0}));
  EXPECT_EQ(decode["read_bandwidth_percent"], nlohmann::json({50.0, 50.0}));
  EXPECT_EQ(decode["read_gbps"], nlohmann::json({30.0, 30.0}));
  EXPECT_EQ(decode["peak_percent"], nlohmann::json({25.0, 25.0}));
  EXPECT_EQ(decode["dropped"], 1);
  EXPECT_TRUE(absl::StrContains(TableRow(decode), "200.0 (100.0..300.0)")) << TableRow(decode);
  EXPECT_TRUE(absl::StrContains(TableRow(decode), "2.50 (2.00..3.00)")) << TableRow(decode);
}

TEST(DecodeReport, ThePromptsOfTheSameRunsHaveARowOfTheirOwn) {
  const nlohmann::json prefill = Summary({4, 128, 64}, true, {SampleOf(100, 50)});
  EXPECT_EQ(prefill["kind"], "prefill");
  EXPECT_EQ(prefill["tokens_per_second"], nlohmann::json({1000.0}));
  EXPECT_TRUE(prefill["read_bandwidth_percent"].empty());
  EXPECT_TRUE(prefill["ratio"].empty()) << "no peer";
  EXPECT_TRUE(absl::StrContains(TableRow(prefill), " - ")) << TableRow(prefill);
}

}  // namespace
}  // namespace somnus
