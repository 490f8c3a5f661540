// Transitions of one rank over memory that fails: the state after each phase.

#include "proto/missing_memory.h"
#include "tests/worker/region_rank.h"

namespace somnus {
namespace {

using Lines = std::vector<std::string>;

Lines Missing(const absl::Status& status) {
  Lines lines;
  const v1::MissingMemory lacking = MissingOf(status);
  for (const v1::MissingMemory::Shortage& one : lacking.shortages()) {
    lines.push_back(absl::StrCat("rank ", one.rank(), " ", one.tag(), " ", one.memory(), " ",
                                 one.missing_bytes(), " of ", one.needed_bytes()));
  }
  return lines;
}

TEST(WorkerTransitionTest, ATagSleepsAndWakesAlone) {
  Rank rank;
  ASSERT_EQ(rank.Run(TransitionOf(1, {"kv_cache"})), absl::OkStatus());
  EXPECT_EQ(rank.state(), (Rank::State{"asleep", 1, {"weights", "workspace"}, 2 * kRegionBytes, 0}));
  EXPECT_TRUE(rank.HasWeights());
  ASSERT_EQ(rank.Run(TransitionOf(1, {"weights"})), absl::OkStatus());
  EXPECT_EQ(rank.state(), (Rank::State{"asleep", 1, {"workspace"}, kRegionBytes, kRegionBytes}));
  ASSERT_EQ(rank.Run(TransitionOf(2, {"weights"})), absl::OkStatus());
  EXPECT_EQ(rank.state(), (Rank::State{"asleep", 2, {"workspace"}, kRegionBytes, 0})) << "no copy is left";
  ASSERT_EQ(rank.Run(TransitionOf(0, {"kv_cache"})), absl::OkStatus());
  EXPECT_EQ(rank.state(), (Rank::State{"asleep", 2, {"kv_cache", "workspace"}, 2 * kRegionBytes, 0}));
  ASSERT_EQ(rank.Run(TransitionOf(0, {"weights"})), absl::OkStatus());
  EXPECT_EQ(rank.state(), (Rank::State{"awake", 0, kAll, kAllBytes, 0}));
  EXPECT_TRUE(rank.HasWeights());
  EXPECT_EQ(rank.control().reloads, 1);
}

TEST(WorkerTransitionTest, ThePlanSaysWhatWouldMove) {
  Rank rank;
  const auto plan = [&](const v1::Transition& transition) {
    v1::PlanRequest request;
    request.set_group_epoch(1);
    *request.mutable_transition() = transition;
    return rank.worker().Plan(request).value();
  };
  v1::PlanResponse sleep = plan(TransitionOf(1));
  EXPECT_EQ(sleep.copy_bytes(), kRegionBytes);
  EXPECT_EQ(sleep.release_bytes_by_tag_size(), 3);
  EXPECT_EQ(plan(TransitionOf(2)).copy_bytes(), 0);
  EXPECT_EQ(plan(TransitionOf(0)).map_bytes_by_tag_size(), 0) << "all is resident";
  rank.driver().SetCapacity(kAllBytes);
  ASSERT_EQ(rank.Run(TransitionOf(1)), absl::OkStatus());
  v1::PlanResponse wake = plan(TransitionOf(0, {"weights", "kv_cache"}));
  EXPECT_EQ(wake.copy_bytes(), kRegionBytes);
  EXPECT_EQ(wake.map_bytes_by_tag_size(), 2);
  EXPECT_EQ(wake.map_bytes_by_tag().at("weights"), kRegionBytes);
  EXPECT_EQ(wake.available_bytes(), kAllBytes);
  EXPECT_FALSE(wake.reads_weights());
  EXPECT_EQ(plan(TransitionOf(1)).release_bytes_by_tag_size(), 0);
  ASSERT_EQ(rank.Run(TransitionOf(2)), absl::OkStatus());
  EXPECT_TRUE(plan(TransitionOf(0)).reads_weights());
  EXPECT_FALSE(plan(TransitionOf(0, {"kv_cache"})).reads_weights());
}

TEST(WorkerTransitionTest, AnAbortLeavesEverythingWhereItWas) {
  for (const int level : {1, 2}) {
    Rank rank;
    const Rank::State awake = rank.state();
    ASSERT_EQ(rank.Prepare(TransitionOf(level), 1), absl::OkStatus());
    EXPECT_EQ(rank.Abort(1), absl::OkStatus());
    EXPECT_EQ(rank.state(), awake);
    EXPECT_TRUE(rank.HasWeights());
    ASSERT_EQ(rank.Prepare(TransitionOf(level), 2), absl::OkStatus());
    ASSERT_EQ(rank.Commit(2), absl::OkStatus());
    const Rank::State asleep = rank.state();
    ASSERT_EQ(rank.Prepare(TransitionOf(0), 3), absl::OkStatus());
    EXPECT_EQ(rank.driver().live_bytes(), kAllBytes);
    EXPECT_EQ(rank.worker().Snapshot().resident_tags_size(), 0) << "it has not happened yet";
    EXPECT_EQ(rank.Abort(3), absl::OkStatus());
    EXPECT_EQ(rank.state(), asleep);
    ASSERT_EQ(rank.Run(TransitionOf(0)), absl::OkStatus());
    EXPECT_TRUE(rank.HasWeights());
    EXPECT_EQ(rank.control().reloads, level == 2 ? 2 : 0);
  }
}

TEST(WorkerTransitionTest, APhaseOfAnotherTransitionIsRefused) {
  Rank rank;
  const Rank::State awake = rank.state();
  EXPECT_EQ(rank.Commit(7), absl::FailedPreconditionError("Commit: transition 7 is not prepared"));
  EXPECT_EQ(rank.Abort(8), absl::OkStatus()) << "its Prepare has not come";
  EXPECT_EQ(rank.Prepare(TransitionOf(1), 8),
            absl::FailedPreconditionError("Prepare: transition 8 comes too late, 8 has ended"));
  EXPECT_EQ(rank.Prepare(TransitionOf(1), 7),
            absl::FailedPreconditionError("Prepare: transition 7 comes too late, 8 has ended"));
  ASSERT_EQ(rank.Prepare(TransitionOf(1), 9), absl::OkStatus());
  EXPECT_EQ(rank.Prepare(TransitionOf(1), 10),
            absl::FailedPreconditionError("Prepare: 9 is prepared already"));
  EXPECT_EQ(rank.Commit(8), absl::FailedPreconditionError("Commit: transition 8 is not prepared"));
  const v1::StepReply step = RunStep(rank.worker(), EmptyStep(1));
  EXPECT_EQ(step.error_message(), "Execute: a transition is prepared");
  EXPECT_EQ(rank.state().name, "awake");
  ASSERT_EQ(rank.Commit(9), absl::OkStatus());
  EXPECT_EQ(rank.Abort(9), absl::FailedPreconditionError("Abort: transition 9 was committed"));
  EXPECT_EQ(rank.state().name, "asleep");
  ASSERT_EQ(rank.Run(TransitionOf(0)), absl::OkStatus());
  EXPECT_EQ(rank.state(), awake);
  EXPECT_EQ(RunStep(rank.worker(), EmptyStep(2)).error_code(), 0);
}

TEST(WorkerTransitionTest, AFenceAbortsWhatIsPrepared) {
  for (const int level : {1, 2}) {
    Rank rank;
    const Rank::State awake = rank.state();
    ASSERT_EQ(rank.Prepare(TransitionOf(level), 9), absl::OkStatus());
    auto snapshot = BeginEpoch(rank.worker(), 2);
    ASSERT_TRUE(snapshot.ok()) << snapshot.status();
    EXPECT_EQ(snapshot->resident_tags_size(), 3);
    EXPECT_EQ(rank.state(), awake);
    EXPECT_EQ(rank.Commit(9, 2), absl::FailedPreconditionError("Commit: transition 9 is not prepared"));
    ASSERT_EQ(rank.Prepare(TransitionOf(level), 1, 2), absl::OkStatus()) << "ids begin again";
    ASSERT_EQ(rank.Commit(1, 2), absl::OkStatus());
    const Rank::State asleep = rank.state();
    ASSERT_EQ(rank.Prepare(TransitionOf(0), 2, 2), absl::OkStatus());
    snapshot = BeginEpoch(rank.worker(), 3);
    ASSERT_TRUE(snapshot.ok()) << snapshot.status();
    EXPECT_EQ(snapshot->sleep_level(), level);
    EXPECT_EQ(rank.state(), asleep);
    ASSERT_EQ(rank.Run(TransitionOf(0), 3), absl::OkStatus());
    EXPECT_TRUE(rank.HasWeights());
  }
}

TEST(WorkerTransitionTest, AWakeUpThatFindsNoMemorySaysHowMuchIsMissing) {
  Rank rank;
  ASSERT_EQ(rank.Run(TransitionOf(1)), absl::OkStatus());
  const Rank::State asleep = rank.state();
  rank.driver().SetCapacity(kAllBytes - kRegionBytes / 2);
  const absl::Status refused = rank.Run(TransitionOf(0));
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  EXPECT_EQ(refused.message(), absl::StrCat("kv_cache: ", kRegionBytes, " bytes needed, ", kRegionBytes / 2,
                                            " available, ", kRegionBytes / 2, " missing"));
  EXPECT_EQ(Missing(refused),
            (Lines{absl::StrCat("rank 0 kv_cache device ", kRegionBytes / 2, " of ", kRegionBytes)}));
  EXPECT_EQ(rank.state(), asleep);
  rank.driver().SetCapacity(kRegionBytes / 2);
  EXPECT_EQ(Missing(rank.Run(TransitionOf(0))).size(), 3u) << "every tag lacks some";
  EXPECT_EQ(rank.state(), asleep);
  rank.driver().SetCapacity(kAllBytes);
  EXPECT_EQ(rank.Run(TransitionOf(0)), absl::OkStatus());
  EXPECT_TRUE(rank.HasWeights());
}

// Host memory of a rank whose device's memory is the host's.
TEST(WorkerTransitionTest, ASleepThatHasNoMemoryForKeptBlocksSaysHowMuchIsMissing) {
  Rank rank;
  const Rank::State awake = rank.state();
  rank.driver().SetCapacity(kAllBytes + kBlockBytes);
  const v1::Transition sleep = Keeping(TransitionOf(1), {{1, 0}, {2, 1}, {3, 2}});
  const absl::Status refused = rank.Run(sleep);
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  EXPECT_EQ(Missing(refused),
            (Lines{absl::StrCat("rank 0 kv_cache host ", 2 * kBlockBytes, " of ", 3 * kBlockBytes)}));
  EXPECT_EQ(rank.state(), awake);
  rank.driver().SetCapacity(kAllBytes + 3 * kBlockBytes);
  EXPECT_EQ(rank.Run(sleep), absl::OkStatus());
}

TEST(WorkerTransitionTest, WhatComesAfterTheMappingFailsAsWell) {
  for (const auto& [level, reads] : {std::pair(2, true), std::pair(2, false), std::pair(1, false)}) {
    Rank rank;
    ASSERT_EQ(rank.Run(TransitionOf(level)), absl::OkStatus());
    const Rank::State asleep = rank.state();
    (reads ? rank.control().reload_error : rank.control().reset_error) = absl::DataLossError("no");
    EXPECT_EQ(rank.Run(TransitionOf(0)), absl::DataLossError("no"));
    EXPECT_EQ(rank.state(), asleep);
    rank.control().reload_error = rank.control().reset_error = absl::OkStatus();
    EXPECT_EQ(rank.Run(TransitionOf(0)), absl::OkStatus());
    EXPECT_TRUE(rank.HasWeights());
    if (!reads) {
      EXPECT_EQ(rank.control().reloads, level == 2 ? 2 : 0) << "what was read is gone again";
    }
  }
}

// The n-th call of the driver fails, of any kind, in a transition between two states.
class FailEveryCall : public testing::TestWithParam<int> {};

TEST_P(FailEveryCall, LeavesEveryTagWhereItWasAndWorksWhenTriedAgain) {
  struct Case {
    std::vector<v1::Transition> before;
    v1::Transition transition;
  };
  const std::vector<Case> cases = {
      {{}, TransitionOf(1)},
      {{}, TransitionOf(2)},
      {{}, TransitionOf(1, {"kv_cache"})},
      {{TransitionOf(1)}, TransitionOf(2)},
      {{TransitionOf(1)}, TransitionOf(0)},
      {{TransitionOf(2)}, TransitionOf(0)},
      {{TransitionOf(2)}, TransitionOf(0, {"weights"})},
      {{TransitionOf(1), TransitionOf(0, {"weights"})}, TransitionOf(0)},
      {{}, Keeping(TransitionOf(1), {{1, 0}, {2, 1}})},
      {{Keeping(TransitionOf(1), {{1, 0}, {2, 1}})}, Keeping(TransitionOf(0), {{1, 0}, {2, 1}})},
      {{Keeping(TransitionOf(1), {{1, 0}, {2, 1}})}, TransitionOf(2)},
  };
  for (size_t i = 0; i < cases.size(); ++i) {
    SCOPED_TRACE(i);
    Rank rank;
    for (const int32_t id : {1, 2}) rank.FillBlock(id);
    for (const v1::Transition& transition : cases[i].before)
      ASSERT_EQ(rank.Run(transition), absl::OkStatus());
    const Rank::State before = rank.state();
    rank.driver().FailAt(GetParam());
    const absl::Status status = rank.Run(cases[i].transition);
    const Rank::State after = rank.state();
    if (!status.ok()) {
      EXPECT_EQ(after.name, before.name) << status;
      EXPECT_EQ(after.sleep_level, before.sleep_level);
      EXPECT_EQ(after.resident, before.resident);
      EXPECT_EQ(after.host_bytes, before.host_bytes);
    }
    rank.driver().FailAt(0);
    const bool keeps = cases[i].transition.kept_blocks_size() > 0;
    if (!keeps || !status.ok()) {
      ASSERT_EQ(rank.Run(cases[i].transition), absl::OkStatus());
    }
    if (!keeps) {
      ASSERT_EQ(rank.Run(TransitionOf(0)), absl::OkStatus());
    } else {
      if (cases[i].transition.sleep_level() > 0) {
        ASSERT_EQ(rank.Run(Keeping(TransitionOf(0), {{1, 0}, {2, 1}})), absl::OkStatus());
      }
      EXPECT_TRUE(rank.HasBlock(1) && rank.HasBlock(2));
    }
    // Memory that the driver failed to release is released in the next round.
    ASSERT_EQ(rank.Run(TransitionOf(1)), absl::OkStatus());
    ASSERT_EQ(rank.Run(TransitionOf(0)), absl::OkStatus());
    EXPECT_EQ(rank.state(), (Rank::State{"awake", 0, kAll, kAllBytes, 0}));
    EXPECT_TRUE(rank.HasWeights());
  }
}

INSTANTIATE_TEST_SUITE_P(Worker, FailEveryCall, testing::Range(1, 30));

}  // namespace
}  // namespace somnus
