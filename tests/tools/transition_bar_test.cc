// The bar of `somnus sleep` and `somnus wake-up`, and their report for scripts.

#include "tools/cli/transition_bar.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "tools/cli/transition_json.h"

namespace somnus::cli {
namespace {

constexpr int64_t kMiB = 1 << 20;

void Add(v1::WatchTransitionResponse* response, uint64_t id, const std::string& phase, int64_t done,
         int64_t total, bool wakes_up = true) {
  auto* const rank = response->add_ranks();
  rank->set_rank(response->ranks_size() - 1);
  if (id == 0) return;  // it has none
  v1::TransitionProgress* const progress = rank->mutable_progress();
  progress->set_prepare_operation_id(id);
  progress->set_phase(phase);
  progress->set_bytes_done(done * kMiB);
  progress->set_bytes_total(total * kMiB);
  progress->set_wakes_up(wakes_up);
}

v1::WatchTransitionResponse Of(uint64_t id, const std::string& phase, int64_t done, int64_t total,
                               bool wakes_up = true) {
  v1::WatchTransitionResponse response;
  Add(&response, id, phase, done, total, wakes_up);
  return response;
}

TEST(TransitionLinesTest, ATransitionFromItsBeginningToItsEnd) {
  TransitionLines lines;
  const int columns = 100;
  EXPECT_EQ(lines.Line(Of(0, "", 0, 0), columns), "");
  EXPECT_EQ(lines.Line(Of(3, "map", 0, 40), columns),
            "waking up [                    ]   0%  0.0 MiB of 40.0 MiB  map");
  EXPECT_EQ(lines.Line(Of(3, "read", 20, 40), columns),
            "waking up [##########          ]  50%  20.0 MiB of 40.0 MiB  read");
  EXPECT_EQ(lines.Line(Of(3, "committed", 40, 40), columns),
            "waking up [####################] 100%  40.0 MiB of 40.0 MiB  committed");
  EXPECT_EQ(lines.Line(Of(4, "copy", 10, 40, false), 200),
            "falling asleep [##########                              ]  25%  10.0 MiB of 40.0 MiB  copy");
}

TEST(TransitionLinesTest, WhatHadEndedBeforeIsNotShown) {
  TransitionLines lines;
  EXPECT_EQ(lines.Line(Of(3, "committed", 40, 40), 80), "");
  EXPECT_EQ(lines.Line(Of(3, "committed", 40, 40), 80), "");
  EXPECT_NE(lines.Line(Of(4, "aborted", 10, 40), 80), "");
  TransitionLines late;
  EXPECT_NE(late.Line(Of(3, "prepared", 40, 40), 80), "") << "it is under way";
}

TEST(TransitionLinesTest, RanksAreAddedUpAndWhoWorksGivesThePhase) {
  TransitionLines lines;
  v1::WatchTransitionResponse response;
  Add(&response, 5, "prepared", 30, 30);
  Add(&response, 5, "map", 10, 50);
  Add(&response, 0, "", 0, 0);
  const std::string line = lines.Line(response, 80);
  EXPECT_NE(line.find(" 50%  40.0 MiB of 80.0 MiB  map"), std::string::npos) << line;
}

TEST(TransitionLinesTest, ALineFitsTheTerminal) {
  for (int columns = 0; columns < 120; ++columns) {
    TransitionLines lines;
    EXPECT_LE(lines.Line(Of(3, "map", 20, 40), columns).size(), static_cast<size_t>(columns)) << columns;
  }
  TransitionLines lines;
  EXPECT_EQ(lines.Line(Of(3, "map", 20, 40), 45), "waking up   50%  20.0 MiB of 40.0 MiB  map") << "no bar";
}

TEST(TransitionLinesTest, OneWithNothingToMoveIsAtItsEndWhenItHasEnded) {
  TransitionLines lines;
  EXPECT_NE(lines.Line(Of(3, "prepared", 0, 0), 80).find("  0%"), std::string::npos);
  EXPECT_NE(lines.Line(Of(3, "committed", 0, 0), 80).find("100%"), std::string::npos);
}

TEST(TransitionJsonTest, NumbersAreNumbersAndNothingIsLeftOut) {
  v1::SleepResponse response;
  (*response.mutable_freed_bytes_by_tag())["weights"] = int64_t{1} << 40;
  response.set_seconds(1.5);
  response.set_level(2);
  v1::TransitionReport::Outcome& outcome = (*response.mutable_report()->mutable_tags())["weights"];
  outcome.set_state("discarded");
  outcome.set_changed(true);
  (*response.mutable_report()->add_ranks()->mutable_tags())["weights"].set_freed_bytes(7);
  const nlohmann::json report = nlohmann::json::parse(TransitionJson(response).value());
  EXPECT_EQ(report["freed_bytes_by_tag"]["weights"], int64_t{1} << 40);
  EXPECT_EQ(report["seconds"], 1.5);
  EXPECT_EQ(report["level"], 2);
  EXPECT_EQ(report["already_asleep"], false);
  EXPECT_EQ(report["report"]["tags"]["weights"]["state"], "discarded");
  const nlohmann::json& rank = report["report"]["ranks"][0];
  EXPECT_EQ(rank["rank"], 0);
  EXPECT_EQ(rank["tags"]["weights"]["freed_bytes"], 7);
  EXPECT_EQ(rank["tags"]["weights"]["mapped_bytes"], 0);
  EXPECT_TRUE(rank["tags"]["weights"]["freed_bytes"].is_number_integer());
}

}  // namespace
}  // namespace somnus::cli
