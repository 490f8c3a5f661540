// The progress that a rank tells, seen from within transitions.

#include "worker/transition_meter.h"

#include "tests/worker/region_rank.h"

namespace somnus {
namespace {

using Progress = v1::TransitionProgress;

TEST(TransitionMeterTest, ATransitionFromItsBeginningToItsEnd) {
  TransitionMeter meter;
  EXPECT_FALSE(meter.Progress().has_value());
  meter.SetPhase(TransitionPhase::kAborted);
  EXPECT_FALSE(meter.Progress().has_value()) << "there is none to abort";
  meter.Begin(7, /*wakes_up=*/true, /*moved_bytes=*/100, /*read_bytes=*/300);
  meter.bytes()->Advance(60);
  Progress progress = meter.Progress().value();
  EXPECT_EQ(progress.prepare_operation_id(), 7u);
  EXPECT_TRUE(progress.wakes_up());
  EXPECT_EQ(progress.phase(), "map");
  EXPECT_EQ(progress.bytes_done(), 60);
  EXPECT_EQ(progress.bytes_total(), 400);
  meter.bytes()->Advance(40);
  meter.SetPhase(TransitionPhase::kRead);
  meter.NoteRead(1, 3);
  EXPECT_EQ(meter.Progress()->phase(), "read");
  EXPECT_EQ(meter.Progress()->bytes_done(), 200) << "a third of what is read";
  meter.NoteRead(3, 3);
  meter.SetPhase(TransitionPhase::kPrepared);
  EXPECT_EQ(meter.Progress()->bytes_done(), 400);
  meter.SetPhase(TransitionPhase::kCommitted);
  const Progress ended = meter.Progress().value();
  EXPECT_EQ(ended.phase(), "committed");
  meter.SetPhase(TransitionPhase::kAborted);
  EXPECT_EQ(meter.Progress()->phase(), "committed") << "it has ended";
  EXPECT_EQ(meter.Progress()->seconds(), ended.seconds()) << "that is what it took";
  meter.Begin(8, /*wakes_up=*/false, 10, 0);
  EXPECT_EQ(meter.Progress()->phase(), "copy");
  EXPECT_EQ(meter.Progress()->bytes_done(), 0);
  meter.Forget();
  EXPECT_FALSE(meter.Progress().has_value());
}

TEST(TransitionMeterTest, NeverMoreThanTheTotalWhichACommittedOneHas) {
  TransitionMeter meter;
  meter.Begin(1, false, 100, 0);
  meter.bytes()->Advance(130);
  EXPECT_EQ(meter.Progress()->bytes_done(), 100);
  meter.Begin(2, false, 100, 0);
  meter.bytes()->Advance(50);
  meter.SetPhase(TransitionPhase::kAborted);
  EXPECT_EQ(meter.Progress()->bytes_done(), 50) << "so far it came";
  meter.Begin(3, false, 100, 0);
  meter.bytes()->Advance(50);  // the driver has failed to release the rest
  meter.SetPhase(TransitionPhase::kCommitted);
  EXPECT_EQ(meter.Progress()->bytes_done(), 100);
}

// A rank that is asked for its progress within every call of the driver.
class WatchedRank {
 public:
  WatchedRank() {
    rank_.driver().OnCall([this] { Look(); });
    rank_.control().on_reload = [this] { Look(); };
  }
  ~WatchedRank() { rank_.driver().OnCall(nullptr); }

  Rank& rank() { return rank_; }
  bool has_progress() { return rank_.worker().GetStatus().has_transition(); }
  Progress progress() { return rank_.worker().GetStatus().transition(); }
  // The progress since the last call: phases one after the other, and never less done than before.
  std::vector<std::string> TakePhases() {
    std::vector<std::string> phases;
    int64_t done = 0;
    for (const Progress& progress : std::exchange(seen_, {})) {
      if (phases.empty() || phases.back() != progress.phase()) phases.push_back(progress.phase());
      EXPECT_GE(progress.bytes_done(), done);
      EXPECT_LE(progress.bytes_done(), progress.bytes_total());
      EXPECT_EQ(progress.bytes_total(), this->progress().bytes_total()) << "it is known from the beginning";
      done = progress.bytes_done();
    }
    return phases;
  }
  // Both phases; returns the progress that was seen, with the progress after each.
  std::vector<std::string> Run(const v1::Transition& transition, uint64_t id) {
    seen_.clear();
    EXPECT_EQ(rank_.Prepare(transition, id), absl::OkStatus());
    Look();
    EXPECT_EQ(rank_.Commit(id), absl::OkStatus());
    Look();
    EXPECT_EQ(progress().prepare_operation_id(), id);
    EXPECT_EQ(progress().bytes_done(), progress().bytes_total());
    return TakePhases();
  }

 private:
  void Look() { seen_.push_back(progress()); }

  Rank rank_;
  std::vector<Progress> seen_;
};

using Phases = std::vector<std::string>;

TEST(WorkerProgressTest, PhasesOfASleepAndAWakeUp) {
  WatchedRank watched;
  EXPECT_FALSE(watched.has_progress());
  EXPECT_EQ(watched.Run(TransitionOf(1), 1), (Phases{"copy", "prepared", "release", "committed"}));
  EXPECT_EQ(watched.progress().bytes_total(), kRegionBytes + kAllBytes) << "weights are copied";
  EXPECT_FALSE(watched.progress().wakes_up());
  EXPECT_EQ(watched.Run(TransitionOf(0), 2), (Phases{"map", "prepared", "committed"}));
  EXPECT_EQ(watched.progress().bytes_total(), kRegionBytes + kAllBytes);
  EXPECT_TRUE(watched.progress().wakes_up());
}

TEST(WorkerProgressTest, DiscardedWeightsAreRead) {
  WatchedRank watched;
  EXPECT_EQ(watched.Run(TransitionOf(2), 1), (Phases{"copy", "prepared", "release", "committed"}));
  EXPECT_EQ(watched.progress().bytes_total(), kAllBytes) << "there is nothing to copy";
  int64_t half_way = 0;
  watched.rank().control().on_reload = [&] { half_way = watched.progress().bytes_done(); };
  EXPECT_EQ(watched.Run(TransitionOf(0, {"weights"}), 2), (Phases{"map", "prepared", "committed"}));
  EXPECT_EQ(half_way, kRegionBytes + kRegionBytes / 2);
  EXPECT_EQ(watched.progress().bytes_total(), 2 * kRegionBytes);
  EXPECT_EQ(watched.Run(TransitionOf(0), 3), (Phases{"map", "prepared", "committed"}));
  EXPECT_EQ(watched.progress().bytes_total(), kAllBytes - kRegionBytes);
}

TEST(WorkerProgressTest, TheCheckpointIsAPhaseOfItsOwn) {
  WatchedRank watched;
  watched.Run(TransitionOf(2), 1);
  EXPECT_EQ(watched.Run(TransitionOf(0), 2), (Phases{"map", "read", "prepared", "committed"}));
}

TEST(WorkerProgressTest, KeptBlocksAreCopiedToo) {
  WatchedRank watched;
  const Pairs kept = {{3, 0}, {1, 2}};
  watched.Run(Keeping(TransitionOf(1, {"kv_cache"}), kept), 1);
  EXPECT_EQ(watched.progress().bytes_total(), kRegionBytes + 2 * kBlockBytes);
  ASSERT_EQ(watched.rank().Prepare(Keeping(TransitionOf(0), kept), 2), absl::OkStatus());
  EXPECT_EQ(watched.progress().bytes_done(), kRegionBytes + 2 * kBlockBytes)
      << "without the host tier's own memory";
}

TEST(WorkerProgressTest, ATransitionWithNothingToDo) {
  WatchedRank watched;
  EXPECT_EQ(watched.Run(TransitionOf(0), 1), (Phases{"prepared", "committed"}));
  EXPECT_EQ(watched.progress().bytes_total(), 0);
}

TEST(WorkerProgressTest, WhatIsRefusedIsNoTransition) {
  WatchedRank watched;
  watched.Run(TransitionOf(1), 3);
  EXPECT_FALSE(watched.rank().Prepare(TransitionOf(0), 3).ok()) << "it comes too late";
  EXPECT_FALSE(watched.rank().Prepare(TransitionOf(0, {"brain"}), 4).ok());
  EXPECT_FALSE(watched.rank().Commit(9).ok());
  EXPECT_EQ(watched.rank().Abort(9), absl::OkStatus()) << "whose Prepare has not come";
  EXPECT_EQ(watched.progress().prepare_operation_id(), 3u);
  EXPECT_EQ(watched.progress().phase(), "committed");
}

TEST(WorkerProgressTest, AnAbort) {
  WatchedRank watched;
  ASSERT_EQ(watched.rank().Prepare(TransitionOf(1), 1), absl::OkStatus());
  ASSERT_EQ(watched.rank().Abort(1), absl::OkStatus());
  EXPECT_EQ(watched.progress().phase(), "aborted");
  EXPECT_EQ(watched.progress().bytes_done(), kRegionBytes) << "the copy; nothing was released";
}

TEST(WorkerProgressTest, WhateverFailsInPrepareAborts) {
  WatchedRank watched;
  for (const int level : {1, 0}) {
    for (uint64_t nth = 1;; ++nth) {
      ASSERT_LT(nth, 50u);
      const uint64_t id = nth + (level == 0 ? 100 : 0);
      watched.rank().driver().FailAt(static_cast<int>(nth));
      const bool ok = watched.rank().Prepare(TransitionOf(level), id).ok();
      watched.rank().driver().FailAt(0);
      watched.TakePhases();
      EXPECT_EQ(watched.progress().prepare_operation_id(), id);
      EXPECT_EQ(watched.progress().phase(), ok ? "prepared" : "aborted");
      if (!ok) continue;
      ASSERT_EQ(watched.rank().Commit(id), absl::OkStatus());
      watched.TakePhases();
      break;
    }
  }
}

TEST(WorkerProgressTest, ANewEpochForgetsIt) {
  WatchedRank watched;
  watched.Run(TransitionOf(1), 1);
  ASSERT_TRUE(BeginEpoch(watched.rank().worker(), 2).ok());
  EXPECT_FALSE(watched.has_progress());
  ASSERT_EQ(watched.rank().Prepare(TransitionOf(0), 1, 2), absl::OkStatus());
  EXPECT_EQ(watched.progress().phase(), "prepared");
  ASSERT_TRUE(BeginEpoch(watched.rank().worker(), 3).ok());
  EXPECT_FALSE(watched.has_progress()) << "what was prepared is aborted, and nobody asks for it";
}

}  // namespace
}  // namespace somnus
