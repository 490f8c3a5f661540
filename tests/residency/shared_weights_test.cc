// Several models whose weights are replaced: no sleep loses weights that no checkpoint has.

#include "coordinator/engine/caller.h"
#include "tests/residency/shared_devices_fixture.h"

namespace somnus {
namespace {

class SharedWeightsTest : public SharedDevicesTest {
 protected:
  void Update(int model) {
    absl::StatusOr<std::unique_ptr<WeightUpdate>> update = engine(model)->BeginWeightUpdate({});
    ASSERT_TRUE(update.ok()) << update.status();
    ASSERT_TRUE((*update)->Finish().ok());
  }
  // As ExpectExact, and of that version of the weights.
  void ExpectVersion(const Ticket& ticket, int64_t version) {
    ExpectExact(ticket);
    EXPECT_EQ(ticket.sink->weights_versions(), std::set<int64_t>{version});
  }
};

TEST_F(SharedWeightsTest, WhatAnUpdateHasBroughtSleepsAtLevel1) {
  retains_backups_ = true;
  host_memory_budget_ = kBytes;
  Start(2, 1);
  ASSERT_EQ(engine(0)->Stats().sleep_level, 1) << "it has the host's memory";
  Update(1);
  ExpectExact(Submit(0, "a"));
  EXPECT_EQ(engine(1)->Stats().sleep_level, 1);
  EXPECT_TRUE(Decided(ResidencyAction::kDropBackup, 0));
  ExpectVersion(Submit(1, "b"), 2);
}

TEST_F(SharedWeightsTest, WithoutHostMemoryAModelThatWasUpdatedKeepsItsPlace) {
  host_memory_budget_ = kBytes - 1;
  Start(2, 1);
  Update(1);
  const Ticket waits = Submit(0, "a");
  while (!Decided(ResidencyAction::kStay, 1)) absl::SleepFor(absl::Milliseconds(1));
  ExpectVersion(Submit(1, "b"), 2);
  EXPECT_FALSE(waits.sink->done());
  EXPECT_TRUE(absl::IsFailedPrecondition(engine(1)->Sleep({.level = 2}).status()));
  ASSERT_TRUE(engine(1)->Sleep({.level = 2, .force = true}).ok()) << "an operator may";
  ExpectExact(waits);
}

TEST_F(SharedWeightsTest, StaleWeightsGiveTheirMemoryToWhoeverWaits) {
  Start(2, 1);
  { auto update = engine(1)->BeginWeightUpdate({}); }  // the update is given up
  EXPECT_TRUE(engine(1)->Stats().needs_weights);
  const Ticket waits = Submit(1, "a");
  ExpectExact(Submit(0, "b"));
  EXPECT_TRUE(Decided(ResidencyAction::kRelease, 1));
  EXPECT_FALSE(waits.sink->done());
  EXPECT_FALSE(engine(1)->Health().ok());
  ExpectExact(Submit(0, "c"));
  // Room is made for the weights, and then for the request.
  ASSERT_TRUE(engine(1)->ReloadWeights({}).ok());
  ExpectVersion(waits, 2);
}

TEST_F(SharedWeightsTest, AnUpdateThatIsUnderWayKeepsItsMemory) {
  Start(2, 1);
  absl::StatusOr<std::unique_ptr<WeightUpdate>> update = engine(1)->BeginWeightUpdate({});
  ASSERT_TRUE(update.ok()) << update.status();
  const Ticket waits = Submit(0, "a");
  ASSERT_TRUE((*update)->Send({}).ok());
  EXPECT_EQ(engine(1)->state(), EngineState::kWaking);
  ASSERT_TRUE((*update)->Finish().ok());
  update->reset();
  ExpectExact(waits);
  ExpectVersion(Submit(1, "b"), 2);
}

TEST_F(SharedWeightsTest, TheIdleTimeBeginsAtTheEndOfAnUpdate) {
  idle_sleep_ = absl::Minutes(10);
  Start(2, 2);
  absl::StatusOr<std::unique_ptr<WeightUpdate>> update = engine(1)->BeginWeightUpdate({});
  ASSERT_TRUE(update.ok()) << update.status();
  ahead_s_ += 15 * 60;
  ASSERT_TRUE((*update)->Finish().ok());
  update->reset();
  ExpectExact(Submit(0, "a"));
  EXPECT_FALSE(Decided(ResidencyAction::kSleepIfIdle, 1));
  ahead_s_ += 15 * 60;
  ExpectExact(Submit(0, "b"));
  while (!Decided(ResidencyAction::kSleepIfIdle, 1)) absl::SleepFor(absl::Milliseconds(1));
}

TEST_F(SharedWeightsTest, AReloadWakesTheWeightsOfAModelThatSleepsByNobodysWord) {
  Start(2, 1);
  ASSERT_EQ(engine(0)->state(), EngineState::kAsleep);
  ASSERT_TRUE(engine(0)->ReloadWeights({.path = "new"}).ok());
  ExpectVersion(Submit(0, "a"), 2);
  ExpectExact(Submit(1, "b"));
  ASSERT_TRUE(engine(0)->Sleep({.level = 2}).ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(engine(0)->ReloadWeights({}).status())) << "by an operator's word";
}

// The step of a trainer, beside a model that serves.
TEST_F(SharedWeightsTest, AnOperatorWakesAModelTagByTag) {
  tag_bytes_ = {{"kv_cache", 60}, {"weights", 30}, {"workspace", 10}};
  Start(2, 1, ResidencyPolicy::kFifo);
  ExpectExact(Submit(0, "a"));
  for (const int64_t version : {2, 3}) {
    const std::string step = std::to_string(version);
    ASSERT_TRUE(engine(0)->Sleep({.level = 2, .force = true}).ok());
    const Ticket waits = Submit(0, "waits" + step);
    ExpectExact(Submit(1, "b" + step));
    absl::StatusOr<TransitionReport> woken = engine(0)->WakeUp({"weights"}, /*load_weights=*/false);
    ASSERT_TRUE(woken.ok()) << woken.status();
    EXPECT_EQ(woken->tags.at("weights").state, TagState::kStale);
    EXPECT_EQ(engine(1)->state(), EngineState::kAsleep) << "130 bytes do not fit";
    Update(0);
    EXPECT_FALSE(waits.sink->done());
    EXPECT_EQ(engine(0)->state(), EngineState::kAsleep) << "the rest has not been woken";
    woken = engine(0)->WakeUp({"kv_cache"});
    ASSERT_TRUE(woken.ok()) << woken.status();
    ExpectVersion(waits, version);
    ExpectExact(Submit(1, "c" + step));
    ExpectVersion(Submit(0, "d" + step), version);
  }
}

TEST_F(SharedWeightsTest, WhatAnOperatorHasWokenStaysBesideAModelThatServes) {
  tag_bytes_ = {{"kv_cache", 60}, {"weights", 30}, {"workspace", 10}};
  budget_ = 130;
  Start(2, 1);
  ASSERT_TRUE(engine(0)->Sleep({.level = 2}).ok());
  ASSERT_TRUE(engine(0)->WakeUp({"weights"}, /*load_weights=*/false).ok());
  EXPECT_EQ(engine(1)->state(), EngineState::kAwake) << "both fit";
  ExpectExact(Submit(1, "a"));
  Update(0);
  ExpectExact(Submit(1, "b"));
  EXPECT_EQ(engine(0)->Stats().residency.state("weights"), TagState::kResident);
  EXPECT_FALSE(Decided(ResidencyAction::kRelease, 0));
  ASSERT_TRUE(engine(0)->WakeUp({"kv_cache", "workspace"}).ok());
  EXPECT_EQ(engine(1)->state(), EngineState::kAsleep);
  ExpectVersion(Submit(0, "c"), 2);
}

TEST_F(SharedWeightsTest, WithoutRoomForATagTheAnswerSaysHowMuchIsMissing) {
  tag_bytes_ = {{"kv_cache", 60}, {"weights", 30}, {"workspace", 10}};
  operator_wait_ = absl::Milliseconds(20);
  Start(2, 1);
  ASSERT_TRUE(engine(0)->Sleep({.level = 2}).ok());
  models_[1].executor->Hold(true);
  const Ticket open = Submit(1, "a");
  const absl::Status status = engine(0)->WakeUp({"weights"}, /*load_weights=*/false).status();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_NE(status.message().find("model 0 needs 30 bytes of --device-memory-budget, and 0 are free"),
            std::string::npos)
      << status;
  models_[1].executor->Hold(false);
  ExpectExact(open);
}

TEST_F(SharedWeightsTest, AWakeUpThatWaitsForRoomEndsWithItsClient) {
  Start(2, 1);
  ASSERT_TRUE(engine(0)->Sleep({.level = 2}).ok());
  models_[1].executor->Hold(true);
  const Ticket open = Submit(1, "a");
  {
    int looks = 0;
    const CallerScope leaves({.name = "client", .has_left = [&looks] { return ++looks > 3; }});
    EXPECT_EQ(engine(0)->WakeUp({}).status(), absl::CancelledError(kAbandoned));
  }
  models_[1].executor->Hold(false);
  ExpectExact(open);
  EXPECT_EQ(engine(0)->state(), EngineState::kAsleep);
}

}  // namespace
}  // namespace somnus
