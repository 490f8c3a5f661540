// Every phase of a start has its own words.

#include "coordinator/residency/start_report.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

namespace somnus {
namespace {

StartProgress Workers(int num_come, bool have_weights, int cluster_port = 0) {
  return {.phase = StartPhase::kWorkers,
          .num_workers = 2,
          .num_come = num_come,
          .have_weights = have_weights,
          .cluster_port = cluster_port};
}

std::string What(const StartProgress& progress) { return ReportStart(progress, absl::UnixEpoch()).what; }

TEST(StartReportTest, WorkersComeReadAndPrepare) {
  EXPECT_EQ(What(Workers(0, false)), "The model is loading: 0 of 2 workers have come.");
  EXPECT_EQ(What(Workers(1, false)), "The model is loading: 1 of 2 workers have come.");
  EXPECT_EQ(What(Workers(2, false)), "The model is loading: its workers read the weights.");
  EXPECT_EQ(What(Workers(2, true)),
            "The model is loading: its workers have the weights, and prepare the KV cache.");
}

TEST(StartReportTest, WorkersOfOtherHostsAreTheWayOutWhileTheyAreMissing) {
  EXPECT_EQ(ReportStart(Workers(1, false, 7000), absl::UnixEpoch()).way_out,
            "the missing workers, started with --coordinator=HOST:7000 of this host");
  for (const StartProgress& progress : {Workers(2, false, 7000), Workers(0, false),
                                        StartProgress{.phase = StartPhase::kText, .cluster_port = 7000}})
    EXPECT_EQ(ReportStart(progress, absl::UnixEpoch()).way_out, "it ends by itself");
}

TEST(StartReportTest, NoTwoPhasesAreAlike) {
  std::set<std::string> all;
  for (const StartPhase phase :
       {StartPhase::kFiles, StartPhase::kBegins, StartPhase::kText, StartPhase::kAdapters, StartPhase::kEnds})
    all.insert(What({.phase = phase}));
  for (const StartProgress& progress : {Workers(0, false), Workers(2, false), Workers(2, true)})
    all.insert(What(progress));
  EXPECT_EQ(all.size(), 8u);
}

}  // namespace
}  // namespace somnus
