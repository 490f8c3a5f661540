#include "coordinator/engine/engine_report.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "coordinator/residency/wake_retries.h"

namespace somnus {
namespace {

constexpr char kWhy[] = "an operator has called something";

EngineStats In(EngineState state) {
  EngineStats stats{.state = state, .note = {.since = absl::FromUnixSeconds(1'800'000'000), .why = kWhy}};
  return stats;
}

EngineStats Asleep(int level, const std::vector<std::string>& tags) {
  EngineStats stats = In(EngineState::kAsleep);
  stats.sleep_level = level;
  stats.residency.Slept({.level = level, .tags = tags});
  return stats;
}

EngineStats With(EngineStats stats, const std::function<void(EngineStats*)>& change) {
  change(&stats);
  return stats;
}

void ReplacesWeights(EngineStats* stats) { stats->lifecycle_call.name = "update_weights"; }

struct Case {
  const char* name;
  EngineStats stats;
  const char* what;
  const char* way_out;
};

// The values that make different reports of an engine that is asleep.
std::vector<Case> CasesOfSleep() {
  const std::vector<std::string> all = {"kv_cache", "weights", "workspace"};
  return {
      {"asleep at level 1", Asleep(1, all),
       "The engine is asleep at level 1 (kv_cache, weights, workspace); requests wait until it is woken.",
       "somnus wake-up"},
      {"asleep at level 2", Asleep(2, all),
       "The engine is asleep at level 2 (kv_cache, weights, workspace); requests wait until it is woken.",
       "somnus wake-up"},
      {"a part is asleep", Asleep(1, {"kv_cache"}),
       "The engine is asleep at level 1 (kv_cache); requests wait until it is woken.", "somnus wake-up"},
      {"asleep, and a request wakes it",
       With(Asleep(1, {"weights"}), [](EngineStats* stats) { stats->request_wakes = true; }),
       "The engine is asleep at level 1 (weights); a request wakes it.", "a request, or somnus wake-up"},
      {"asleep, and others hold the memory",
       With(Asleep(1, {"weights"}), [](EngineStats* stats) { stats->awaits_room_of = "b, c"; }),
       "The engine is asleep at level 1 (weights); requests wait until there is room.",
       "it ends by itself when its turn comes; somnus sleep --model=NAME of another model makes room at "
       "once"},
      {"a wake-up was refused",
       With(
           Asleep(1, all),
           [](EngineStats* stats) { stats->wake_up_error = absl::StrCat(kCouldNotBeWoken, "rank 0: gone"); }),
       "The engine is asleep, and could not be woken.",
       "somnus wake-up once the reason is gone; after somnus sleep --level 2 it reads the checkpoint"},
      {"a wake-up from level 2 was refused",
       With(
           Asleep(2, all),
           [](EngineStats* stats) { stats->wake_up_error = absl::StrCat(kCouldNotBeWoken, "rank 0: gone"); }),
       "The engine is asleep, and could not be woken.",
       "somnus wake-up once the reason is gone; somnus wake-up --no-load-weights and then somnus "
       "reload-weights take other files"},
      {"an update was given up",
       With(In(EngineState::kAsleep), [](EngineStats* stats) { stats->residency.SetWeightsStale(true); }),
       "The weights are stale; requests wait until others have been brought.",
       "somnus reload-weights, or an update"},
      {"weights of an update were discarded",
       With(Asleep(2, all), [](EngineStats* stats) { stats->needs_weights = true; }),
       "The weights came from an update and were discarded; requests wait until others have been brought.",
       "somnus reload-weights, or an update"},
      {"stale for too long",
       With(In(EngineState::kAsleep), [](EngineStats* stats) { stats->gave_up_stale_weights = true; }),
       kStaleForTooLong, "somnus reload-weights, or an update"},
  };
}

std::vector<Case> CasesBesideSleep() {
  return {
      {"loading", In(EngineState::kLoading), "The model is loading.", "it ends by itself"},
      {"waking", In(EngineState::kWaking), "The engine is waking up; requests wait until it is awake.",
       "it ends by itself; somnus abort-call gives it up"},
      {"an update is under way", With(In(EngineState::kWaking), ReplacesWeights),
       "The weights are being replaced; requests wait until all workers have others.",
       "it ends by itself; somnus abort-call gives it up"},
      {"falling asleep", In(EngineState::kFallingAsleep),
       "The engine is falling asleep; requests wait until it is woken.",
       "it ends by itself; somnus abort-call undoes it"},
      {"recovering", In(EngineState::kRecovering),
       "The engine is recovering from the loss of a worker; requests wait until the group is whole again.",
       "it ends by itself; where workers run elsewhere, another one in the place of the lost one"},
      {"draining", In(EngineState::kDraining), "The server is shutting down.", "another start of the server"},
      {"failed, for want of workers",
       With(In(EngineState::kFailed),
            [](EngineStats* stats) {
              stats->error = "rank 0 was killed";
              stats->may_revive = true;
            }),
       "The engine has failed.", "somnus revive starts new workers"},
      {"failed for good",
       With(In(EngineState::kFailed), [](EngineStats* stats) { stats->error = "integrity check"; }),
       "The engine has failed.", "only a restart of the server brings it back"},
      {"about to pause", In(EngineState::kPausing),
       "The engine is about to pause; requests wait until it is resumed.",
       "it ends by itself when open requests have ended; somnus resume undoes it"},
      {"paused", In(EngineState::kPaused), "The engine is paused; requests wait until it is resumed.",
       "somnus resume"},
      {"a step hangs",
       With(In(EngineState::kAwake),
            [](EngineStats* stats) {
              stats->stall = absl::UnavailableError("Step 3 hangs.");
              stats->stalled_since = absl::FromUnixSeconds(1'800'000'000);
            }),
       "Step 3 hangs.",
       "it ends by itself, at --step-timeout at the latest: the reply comes, or the worker is replaced"},
  };
}

std::vector<Case> Cases() {
  std::vector<Case> cases = CasesOfSleep();
  for (const Case& one : CasesBesideSleep()) cases.push_back(one);
  return cases;
}

TEST(EngineReportTest, EveryStateHasAllFourParts) {
  for (const Case& one : Cases()) {
    SCOPED_TRACE(one.name);
    const StateReport report = ReportState(one.stats);
    EXPECT_FALSE(report.serving());
    EXPECT_EQ(report.what, one.what);
    EXPECT_FALSE(report.why.empty());
    EXPECT_EQ(report.since, absl::FromUnixSeconds(1'800'000'000));
    EXPECT_EQ(report.way_out, one.way_out);
    EXPECT_EQ(report.Line(), absl::StrCat(one.what, " Why: ", report.why,
                                          ". Since: 2027-01-15T08:00:00Z. Way out: ", one.way_out, "."));
    EXPECT_LT(report.Line().size() + 250, 700u + report.why.size()) << "messages of HTTP are cut there";
  }
}

TEST(EngineReportTest, NoStateOfTheEngineIsWithoutACase) {
  std::set<EngineState> seen;
  for (const Case& one : Cases()) seen.insert(one.stats.state);
  for (const EngineState state : kEngineStates) EXPECT_EQ(seen.count(state), 1u) << EngineStateName(state);
}

TEST(EngineReportTest, AnEngineThatServesHasNone) {
  const StateReport report = ReportState(In(EngineState::kAwake));
  EXPECT_TRUE(report.serving());
  EXPECT_EQ(report.Line(), "");
}

TEST(EngineReportTest, TheReasonIsTheCauseOfTheState) {
  EXPECT_EQ(ReportState(In(EngineState::kPaused)).why, kWhy);
  EXPECT_EQ(ReportState(With(In(EngineState::kPaused), [](EngineStats* stats) { stats->note.why = ""; })).why,
            "the server itself has decided so");
  EXPECT_EQ(
      ReportState(With(In(EngineState::kFailed), [](EngineStats* stats) { stats->error = "rank 0"; })).why,
      "rank 0");
  const auto refused = [](EngineStats* stats) {
    stats->wake_up_error = absl::StrCat(kCouldNotBeWoken, "rank 0: gone");
  };
  EXPECT_EQ(ReportState(With(Asleep(1, {"weights"}), refused)).why, "rank 0: gone");
  const auto waits = [](EngineStats* stats) { stats->awaits_room_of = "b, c"; };
  EXPECT_EQ(ReportState(With(Asleep(1, {"weights"}), waits)).why, "the memory is held by b, c");
}

TEST(EngineReportTest, CommandsNameTheModelWhereThereAreSeveral) {
  const auto several = [](EngineStats* stats) { stats->model_flag = "llama"; };
  EXPECT_EQ(ReportState(With(In(EngineState::kPaused), several)).way_out, "somnus resume --model=llama");
}

TEST(EngineReportTest, ALongReasonLeavesTheWayOutInTheLine) {
  const auto failed = [](EngineStats* stats) { stats->error = std::string(4000, 'x') + "\n"; };
  const std::string line = ReportState(With(In(EngineState::kFailed), failed)).Line();
  EXPECT_LT(line.size(), 450u);
  EXPECT_TRUE(absl::EndsWith(line, "Way out: only a restart of the server brings it back.")) << line;
  EXPECT_EQ(line.find('\n'), std::string::npos);
}

TEST(StateHistoryTest, AReasonGoesOnUntilAnotherComes) {
  StateHistory history;
  history.NoteState(EngineState::kFallingAsleep, absl::FromUnixSeconds(1), "an operator has called sleep");
  history.NoteState(EngineState::kAsleep, absl::FromUnixSeconds(2), "");
  EXPECT_EQ(history.note().why, "an operator has called sleep");
  EXPECT_EQ(history.note().since, absl::FromUnixSeconds(2));
}

TEST(StateHistoryTest, AfterARecoveryTheStateOfBeforeGoesOn) {
  StateHistory history;
  history.NoteState(EngineState::kAsleep, absl::FromUnixSeconds(2), "an operator has called sleep");
  history.NoteState(EngineState::kRecovering, absl::FromUnixSeconds(3), "rank 0 was killed");
  EXPECT_EQ(history.note().why, "rank 0 was killed");
  history.NoteState(EngineState::kAsleep, absl::FromUnixSeconds(4), "");
  EXPECT_EQ(history.note().why, "an operator has called sleep");
  EXPECT_EQ(history.note().since, absl::FromUnixSeconds(2));
  history.NoteState(EngineState::kRecovering, absl::FromUnixSeconds(5), "rank 1 was killed");
  history.NoteState(EngineState::kAsleep, absl::FromUnixSeconds(6), "new workers cannot have the weights");
  EXPECT_EQ(history.note().why, "new workers cannot have the weights");
  EXPECT_EQ(history.note().since, absl::FromUnixSeconds(6));
}

}  // namespace
}  // namespace somnus
