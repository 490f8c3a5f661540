// Models whose weights no checkpoint has: the policy never chooses a decision that would lose the weights.
// And models that are half awake.

#include <gtest/gtest.h>

#include "coordinator/several_models/host_memory.h"
#include "coordinator/several_models/residency_policy.h"
#include "tests/residency/policy_decisions.h"

namespace somnus {
namespace {

constexpr int64_t kDevice = 5;  // bytes of each model; two do not fit
constexpr int64_t kBackup = 4;

ModelView Idle(bool only_copy) {
  ModelView model{.state = ModelState::kAwake};
  model.device_bytes = model.resident_bytes = kDevice;
  model.backup_bytes = kBackup;
  model.only_copy = only_copy;
  model.last_used = model.awake_since = kNow - absl::Minutes(5);
  return model;
}

ModelView Waits(int64_t held_bytes, absl::Duration waits = absl::Seconds(1)) {
  ModelView model;
  model.state = ModelState::kAsleep;
  model.level = held_bytes > 0 ? 1 : 2;
  model.prefetched = true;
  model.device_bytes = kDevice;
  model.backup_bytes = kBackup;
  model.held_bytes = held_bytes;
  model.open_requests = 1;
  model.waiting_since = kNow - waits;
  model.last_used = kNow;
  return model;
}

ResidencyOptions HostBudget(int64_t bytes) {
  ResidencyOptions options{.device_memory_budget = kDevice, .host_memory_budget = bytes};
  return options;
}

TEST(OnlyCopyTest, ItSleepsAtLevel1WhereTheHostHasRoom) {
  for (const bool only_copy : {false, true}) {
    EXPECT_EQ(Decisions(HostBudget(kBackup), {Idle(only_copy), Waits(0)}),
              Only(Action::kSleepIfIdle, Reason::kIdle, 0, 1, 1));
  }
}

TEST(OnlyCopyTest, WithoutRoomOnTheHostItStaysAndThatIsToldOnce) {
  const ResidencyOptions options = HostBudget(kBackup - 1);
  std::vector<ModelView> models = {Idle(/*only_copy=*/false), Waits(0)};
  EXPECT_EQ(Decisions(options, models), Only(Action::kSleepIfIdle, Reason::kIdle, 0, 2, 1));
  models[0].only_copy = true;
  EXPECT_EQ(Decisions(options, models), Only(Action::kStay, Reason::kOnlyCopy, 0, 0, 1));
  models[0].stay_told = true;
  EXPECT_TRUE(Decisions(options, models).empty());
}

TEST(OnlyCopyTest, ABackupThatACheckpointCanReplaceGivesWayWhoeverNeedsIt) {
  const ResidencyOptions options = HostBudget(kBackup);
  std::vector<ModelView> models = {Idle(/*only_copy=*/false), Waits(kBackup)};
  EXPECT_EQ(Decisions(options, models), Only(Action::kSleepIfIdle, Reason::kIdle, 0, 2, 1));
  models[0].only_copy = true;
  EXPECT_EQ(Decisions(options, models), Only(Action::kDropBackup, Reason::kHostMemory, 1, 2, 1))
      << "though requests wait for it";
  ModelView unused = Waits(kBackup);
  unused.open_requests = 0;
  models[1].held_bytes = 0;
  models.push_back(unused);
  EXPECT_EQ(Decisions(options, models), Only(Action::kDropBackup, Reason::kHostMemory, 2, 2, 1))
      << "though it was used more recently";
}

TEST(OnlyCopyTest, TheOnlyCopyIsNoBackupThatGivesWay) {
  ModelView sleeps = Waits(kBackup);
  sleeps.open_requests = 0;
  sleeps.last_used = kNow - absl::Hours(1);
  EXPECT_TRUE(MayDropBackup(sleeps));
  sleeps.only_copy = true;
  EXPECT_FALSE(MayDropBackup(sleeps));
  EXPECT_EQ(Decisions(HostBudget(kBackup), {Idle(/*only_copy=*/false), Waits(0), sleeps}),
            Only(Action::kSleepIfIdle, Reason::kIdle, 0, 2, 1));
  EXPECT_EQ(Decisions(HostBudget(kBackup), {Idle(/*only_copy=*/true), Waits(0), sleeps}),
            Only(Action::kStay, Reason::kOnlyCopy, 0, 0, 1));
  EXPECT_EQ(Decisions(HostBudget(2 * kBackup), {Idle(/*only_copy=*/true), Waits(0), sleeps}),
            Only(Action::kSleepIfIdle, Reason::kIdle, 0, 1, 1));
}

// A model that waits for memory for ever does not keep other models from memory.
TEST(OnlyCopyTest, WhoeverWaitsForItBlocksNobody) {
  ResidencyOptions options = HostBudget(kBackup - 1);
  options.device_memory_budget = 2 * kDevice;
  ModelView large = Waits(0, absl::Hours(1));
  large.device_bytes = 2 * kDevice;
  EXPECT_EQ(Decisions(options, {Idle(/*only_copy=*/true), large, Waits(0)})[0],
            Only(Action::kWake, Reason::kRequestsWait, 2, 0, 2)[0]);
}

// Two models that could sleep one at a time do not both count on the same host memory.
TEST(OnlyCopyTest, TwoDoNotTakeTheSameHostMemory) {
  ResidencyOptions options = HostBudget(kBackup);
  options.device_memory_budget = 2 * kDevice;
  ModelView large = Waits(0);
  large.device_bytes = 2 * kDevice;
  const std::vector<ResidencyDecision> decisions =
      Decisions(options, {Idle(/*only_copy=*/true), Idle(/*only_copy=*/true), large});
  for (const ResidencyDecision& decision : decisions) EXPECT_LT(decision.level, 2);
  EXPECT_LE(decisions.size(), 1u);
}

// The mapped memory of a model that sleeps in part, or whose weights are stale.
ModelView HalfAwake(int64_t bytes) {
  ModelView model = Waits(0);
  model.open_requests = 0;
  model.level = 0;
  model.resident_bytes = model.idle_bytes = bytes;
  model.backup_bytes = 0;
  return model;
}

TEST(HalfAwakeTest, ItsMemoryGoesFirst) {
  ResidencyOptions options = HostBudget(0);
  options.device_memory_budget = 2 * kDevice;
  EXPECT_EQ(Decisions(options, {Idle(false), HalfAwake(kDevice), Waits(0)}),
            Only(Action::kRelease, Reason::kHalfAwake, 1, 1, 2));
  ModelView unreadable = HalfAwake(kDevice);
  unreadable.held_asleep = true;
  unreadable.open_requests = 1;
  EXPECT_EQ(Decisions(options, {Idle(false), unreadable, Waits(0)}),
            Only(Action::kRelease, Reason::kHalfAwake, 1, 1, 2));
}

TEST(HalfAwakeTest, AReleaseThatHasFailedIsNotTriedAgainAtOnce) {
  ModelView failed = HalfAwake(kDevice);
  failed.awake_since = kNow + absl::Seconds(1);
  const ResidencyPlan plan = PlanResidency(HostBudget(0), kNow, {failed, Waits(0)});
  EXPECT_TRUE(plan.decisions.empty());
  EXPECT_EQ(plan.look_again_at, failed.awake_since);
}

TEST(HalfAwakeTest, WhatAnOperatorHoldsStaysAndCounts) {
  ResidencyOptions options = HostBudget(0);
  options.device_memory_budget = 2 * kDevice;
  ModelView held = HalfAwake(2);
  held.idle_bytes = 0;
  held.held_awake = true;
  EXPECT_EQ(Decisions(options, {Idle(false), held, Waits(0)}),
            Only(Action::kSleepIfIdle, Reason::kIdle, 0, 2, 2));
  ModelView large = Waits(0, absl::Hours(1));
  large.device_bytes = 2 * kDevice;
  EXPECT_TRUE(Decisions(options, {held, large}).empty());
  EXPECT_EQ(Decisions(options, {held, large, Waits(0)}), Only(Action::kWake, Reason::kRequestsWait, 2, 0, 2))
      << "the large one could not wake";
  ModelView awake = Idle(false);
  awake.held_awake = true;
  options.device_memory_budget = kDevice;
  EXPECT_TRUE(Decisions(options, {awake, Waits(0)}).empty());
  EXPECT_EQ(FreeDeviceBytes(options, {held, Waits(0)}), kDevice - 2);
}

}  // namespace
}  // namespace somnus
