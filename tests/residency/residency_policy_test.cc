#include "coordinator/several_models/residency_policy.h"

#include <gtest/gtest.h>

#include "coordinator/several_models/host_memory.h"
#include "tests/residency/policy_decisions.h"

namespace somnus {
namespace {

ModelView Awake(int64_t bytes, int open_requests, absl::Duration unused_for) {
  ModelView model;
  model.state = ModelState::kAwake;
  model.device_bytes = bytes;
  model.resident_bytes = bytes;
  model.open_requests = open_requests;
  model.last_used = kNow - unused_for;
  model.awake_since = kNow - absl::Minutes(5);
  return model;
}

// The model has an open request where `waits` is finite.
ModelView Asleep(int64_t bytes, absl::Duration waits = -absl::InfiniteDuration()) {
  ModelView model{.state = ModelState::kAsleep, .level = 1, .device_bytes = bytes};
  if (waits < absl::ZeroDuration()) return model;
  model.open_requests = 1;
  model.waiting_since = kNow - waits;
  return model;
}

ResidencyOptions Budget(int64_t bytes, ResidencyPolicy policy = ResidencyPolicy::kFifo) {
  ResidencyOptions options{.policy = policy, .device_memory_budget = bytes};
  return options;
}

std::vector<ResidencyDecision> Wakes(int model) {
  return Only(Action::kWake, Reason::kRequestsWait, model, 0, model);
}

TEST(ResidencyPolicyTest, NobodyWakesWithoutARequest) {
  const ResidencyPlan plan = PlanResidency(Budget(10), kNow, {Awake(5, 1, {}), Asleep(5)});
  EXPECT_TRUE(plan.decisions.empty());
  EXPECT_EQ(plan.look_again_at, absl::InfiniteDuration());
}

TEST(ResidencyPolicyTest, AModelWakesWhereMemoryIsFree) {
  EXPECT_EQ(Decisions(Budget(10), {Awake(5, 1, {}), Asleep(5, absl::Seconds(1))}), Wakes(1));
  EXPECT_EQ(Decisions(ResidencyOptions(), {Awake(5, 1, {}), Asleep(5, absl::Seconds(1))}), Wakes(1));
  ModelView held = Asleep(5, absl::Seconds(1));
  held.held_asleep = true;
  EXPECT_TRUE(Decisions(Budget(10), {held}).empty());
}

TEST(ResidencyPolicyTest, WhatIsBeingMappedOrReleasedIsNotFree) {
  for (const ModelState state : {ModelState::kLoading, ModelState::kWaking, ModelState::kFallingAsleep}) {
    ModelView other = Awake(6, 0, {});
    other.state = state;
    EXPECT_TRUE(Decisions(Budget(10), {other, Asleep(5, absl::Seconds(1))}).empty());
  }
  ModelView failed = Awake(6, 0, {});
  failed.state = ModelState::kFailed;
  EXPECT_TRUE(Decisions(Budget(10), {failed, Asleep(5, absl::Seconds(1))}).empty());
  failed.resident_bytes = 0;
  EXPECT_EQ(Decisions(Budget(10), {failed, Asleep(5, absl::Seconds(1))}), Wakes(1));
}

TEST(ResidencyPolicyTest, TheLeastRecentlyUsedIdleModelMakesRoom) {
  const std::vector<ModelView> models = {Awake(5, 0, absl::Seconds(9)), Awake(5, 0, absl::Seconds(30)),
                                         Awake(5, 1, absl::Seconds(60)), Asleep(5, absl::Seconds(1))};
  EXPECT_EQ(Decisions(Budget(15), models), Only(Action::kSleepIfIdle, Reason::kIdle, 1, 1, 3));
}

// An engine that an operator has paused refuses to sleep as an idle engine, however often asked.
TEST(ResidencyPolicyTest, APausedModelWithoutARequestIsPreemptedForAModelThatWaits) {
  ModelView paused = Awake(5, 0, absl::Seconds(30));
  paused.paused = paused.held_asleep = true;
  EXPECT_EQ(Decisions(Budget(5), {paused, Asleep(5, absl::Seconds(1))}),
            Only(Action::kPreempt, Reason::kIdle, 0, 1, 1));
  paused.idle_sleep = absl::Seconds(10);
  EXPECT_TRUE(Decisions(Budget(5), {paused, Asleep(5)}).empty()) << "no model waits";
}

TEST(ResidencyPolicyTest, NoMoreModelsSleepThanMustToMakeRoom) {
  // The first is the least recently used, but does not suffice; with the second model the first is not
  // needed.
  const std::vector<ModelView> models = {Awake(2, 0, absl::Seconds(60)), Awake(6, 0, absl::Seconds(30)),
                                         Awake(2, 0, absl::Seconds(9)), Asleep(6, absl::Seconds(1))};
  EXPECT_EQ(Decisions(Budget(10), models), Only(Action::kSleepIfIdle, Reason::kIdle, 1, 1, 3));
}

TEST(ResidencyPolicyTest, NobodySleepsInVain) {
  ModelView fresh = Awake(8, 0, absl::Seconds(9));
  fresh.awake_since = kNow - absl::Milliseconds(30);
  // The idle model alone is not enough, and the fresh model stays.
  const ResidencyPlan plan =
      PlanResidency(Budget(10), kNow, {Awake(2, 0, absl::Seconds(60)), fresh, Asleep(5, absl::Seconds(1))});
  EXPECT_TRUE(plan.decisions.empty());
  EXPECT_EQ(plan.look_again_at, fresh.awake_since + ResidencyOptions().minimum_stay);
}

TEST(ResidencyPolicyTest, AModelThatHasWokenStaysForAMultipleOfASwitch) {
  ModelView fresh = Awake(5, 0, absl::Seconds(1));
  fresh.awake_since = kNow - absl::Seconds(3);
  fresh.switch_time = absl::Seconds(2);
  const ResidencyPlan plan = PlanResidency(Budget(5), kNow, {fresh, Asleep(5, absl::Hours(1))});
  EXPECT_TRUE(plan.decisions.empty());
  EXPECT_EQ(plan.look_again_at, kNow + absl::Seconds(1));
}

TEST(ResidencyPolicyTest, PinnedModelsStayAndWake) {
  ModelView pinned = Awake(5, 0, absl::Hours(1));
  pinned.pinned = true;
  EXPECT_TRUE(Decisions(Budget(5), {pinned, Asleep(5, absl::Hours(1))}).empty());
  pinned = Asleep(5);
  pinned.pinned = true;
  EXPECT_EQ(Decisions(Budget(5), {pinned}), Only(Action::kWake, Reason::kPinned, 0, 0, 0));
}

TEST(ResidencyPolicyTest, WhatIsUnusedForItsIdleTimeSleepsThoughNobodyWaits) {
  ModelView unused = Awake(5, 0, absl::Seconds(59));
  unused.idle_sleep = absl::Minutes(1);
  const ResidencyPlan early = PlanResidency(Budget(20), kNow, {Awake(5, 0, absl::Hours(1)), unused});
  EXPECT_TRUE(early.decisions.empty());
  EXPECT_EQ(early.look_again_at, kNow + absl::Seconds(1));
  unused.last_used -= absl::Seconds(1);
  EXPECT_EQ(Decisions(Budget(20), {unused}), Only(Action::kSleepIfIdle, Reason::kUnused, 0, 1, 0));
  unused.idle_level = 2;
  EXPECT_EQ(Decisions(Budget(20), {unused}), Only(Action::kSleepIfIdle, Reason::kUnused, 0, 2, 0));
  unused.only_copy = true;
  EXPECT_EQ(Decisions(Budget(20), {unused}), Only(Action::kSleepIfIdle, Reason::kUnused, 0, 1, 0));
  unused.awake_since = kNow - absl::Seconds(59);
  EXPECT_TRUE(Decisions(Budget(20), {unused}).empty()) << "it has woken since";
}

TEST(ResidencyPolicyTest, WhoeverIsBusyOrHeldDoesNotSleepUnused) {
  ModelView unused = Awake(5, 0, absl::Hours(1));
  unused.idle_sleep = absl::Minutes(1);
  for (bool ModelView::*held : {&ModelView::pinned, &ModelView::held_awake, &ModelView::held_asleep}) {
    ModelView model = unused;
    model.*held = true;
    EXPECT_TRUE(Decisions(Budget(20), {model}).empty());
  }
  unused.open_requests = 1;
  EXPECT_TRUE(Decisions(Budget(20), {unused}).empty());
}

TEST(ResidencyPolicyTest, FifoFinishesWhatIsOpenAfterItsTurn) {
  ModelView busy = Awake(5, 3, {});
  busy.awake_since = kNow - absl::Seconds(1);
  const ResidencyPlan plan = PlanResidency(Budget(5), kNow, {busy, Asleep(5, absl::Seconds(1))});
  EXPECT_TRUE(plan.decisions.empty());
  EXPECT_EQ(plan.look_again_at, kNow + absl::Seconds(1));
  busy.awake_since = kNow - absl::Seconds(2);
  EXPECT_EQ(Decisions(Budget(5), {busy, Asleep(5, absl::Seconds(1))}),
            Only(Action::kDrain, Reason::kTurnIsOver, 0, 1, 1));
}

TEST(ResidencyPolicyTest, FifoPreemptsForOneThatHasWaitedTooLong) {
  const ModelView busy = Awake(5, 3, {});
  EXPECT_EQ(Decisions(Budget(5), {busy, Asleep(5, absl::Seconds(20))}),
            Only(Action::kPreempt, Reason::kWaitedTooLong, 0, 1, 1));
  ModelView drains = busy;
  drains.state = ModelState::kDraining;
  drains.level = 1;
  const ResidencyPlan plan = PlanResidency(Budget(5), kNow, {drains, Asleep(5, absl::Seconds(5))});
  EXPECT_TRUE(plan.decisions.empty());
  EXPECT_EQ(plan.look_again_at, kNow + absl::Seconds(15));
  EXPECT_EQ(Decisions(Budget(5), {drains, Asleep(5, absl::Seconds(20))}),
            Only(Action::kPreempt, Reason::kWaitedTooLong, 0, 1, 1));
}

TEST(ResidencyPolicyTest, ThoseThatWaitComeByPriorityAndThenInTheirOrder) {
  std::vector<ModelView> models = {Asleep(5, absl::Seconds(1)), Asleep(5, absl::Seconds(3)),
                                   Asleep(5, absl::Seconds(2))};
  EXPECT_EQ(Decisions(Budget(5), models), Wakes(1));
  models[0].priority = 1;
  EXPECT_EQ(Decisions(Budget(5), models), Wakes(0));
  models[2].waiting_since = kNow - absl::Seconds(21);
  EXPECT_EQ(Decisions(Budget(5), models), Wakes(2)) << "it has waited for longer than max_wait";
}

TEST(ResidencyPolicyTest, ABusyModelOfAHigherPriorityStaysWithinTheWait) {
  ModelView busy = Awake(5, 1, {});
  busy.priority = 1;
  const ResidencyPlan plan = PlanResidency(Budget(5), kNow, {busy, Asleep(5, absl::Seconds(5))});
  EXPECT_TRUE(plan.decisions.empty());
  EXPECT_EQ(plan.look_again_at, kNow + absl::Seconds(15));
  EXPECT_EQ(Decisions(Budget(5), {busy, Asleep(5, absl::Seconds(20))}),
            Only(Action::kPreempt, Reason::kWaitedTooLong, 0, 1, 1));
}

TEST(ResidencyPolicyTest, ASmallModelPassesALargeOneUntilThatHasWaitedTooLong) {
  ModelView stays = Awake(5, 1, {});
  stays.awake_since = kNow;
  const ModelView small = Asleep(5, absl::Seconds(1));
  EXPECT_EQ(Decisions(Budget(10), {stays, Asleep(10, absl::Seconds(2)), small}), Wakes(2));
  EXPECT_TRUE(Decisions(Budget(10), {stays, Asleep(10, absl::Seconds(20)), small}).empty());
}

TEST(ResidencyPolicyTest, OneThatCanNotFitStopsNobody) {
  EXPECT_EQ(Decisions(Budget(10), {Asleep(11, absl::Hours(1)), Asleep(5, absl::Seconds(1))}), Wakes(1));
  ModelView pinned = Awake(5, 0, {});
  pinned.pinned = true;
  EXPECT_EQ(Decisions(Budget(10), {pinned, Asleep(6, absl::Hours(1)), Asleep(5, absl::Seconds(1))}),
            Wakes(2));
}

TEST(ResidencyPolicyTest, MemoryThatIsBeingReleasedGoesToTheFirstInTheRow) {
  ModelView leaves = Awake(5, 0, {});
  leaves.state = ModelState::kFallingAsleep;
  const std::vector<ModelView> models = {leaves, Awake(5, 0, absl::Seconds(9)), Asleep(5, absl::Seconds(3)),
                                         Asleep(5, absl::Seconds(2))};
  EXPECT_EQ(Decisions(Budget(10), models), Only(Action::kSleepIfIdle, Reason::kIdle, 1, 1, 3))
      << "the first one that waits has what is released, and nobody sleeps for it";
}

TEST(ResidencyPolicyTest, AFailedWakeUpIsTriedAgainAtItsTime) {
  ModelView failed = Asleep(5, absl::Seconds(30));
  failed.retry_at = kNow + absl::Seconds(2);
  const ResidencyPlan plan = PlanResidency(Budget(5), kNow, {failed, Asleep(5, absl::Seconds(1))});
  EXPECT_EQ(plan.decisions, Wakes(1));
  EXPECT_EQ(plan.look_again_at, kNow + absl::Seconds(2));
}

TEST(ResidencyPolicyTest, SloPreemptsTheModelWithTheMostTimeLeft) {
  std::vector<ModelView> models = {Awake(5, 1, {}), Awake(5, 1, {}), Asleep(5, absl::Seconds(1))};
  models[0].deadline = kNow + absl::Seconds(1);
  models[1].deadline = kNow + absl::Seconds(4);
  EXPECT_EQ(Decisions(Budget(10, ResidencyPolicy::kSlo), models),
            Only(Action::kPreempt, Reason::kTurnIsOver, 1, 1, 2));
}

TEST(ResidencyPolicyTest, SloWakesTheModelWhoseTokenIsDueFirst) {
  std::vector<ModelView> models = {Asleep(5, absl::Seconds(3)), Asleep(5, absl::Seconds(1))};
  models[0].deadline = kNow + absl::Seconds(4);
  models[1].deadline = kNow + absl::Seconds(2);
  EXPECT_EQ(Decisions(Budget(5, ResidencyPolicy::kSlo), models), Wakes(1));
}

TEST(ResidencyPolicyTest, TurnsOfSloAreAsLongAsTheTargetsAsk) {
  // Two models that need a quarter of the time each; their switches take a second together. Turns and
  // switches make a cycle of 1 / (0.95 - 0.5) s, of which a turn is a quarter: 0.556 s.
  std::vector<ModelView> models = {Awake(5, 1, {}), Asleep(5, absl::Seconds(1))};
  for (ModelView& model : models) {
    model.step_time = absl::Milliseconds(25);
    model.tpot_target = absl::Milliseconds(100);
    model.switch_time = absl::Milliseconds(500);
  }
  ResidencyOptions options = Budget(5, ResidencyPolicy::kSlo);
  options.stay_factor = 0.2;
  models[0].awake_since = kNow - absl::Milliseconds(540);
  EXPECT_TRUE(Decisions(options, models).empty());
  models[0].awake_since = kNow - absl::Milliseconds(570);
  EXPECT_EQ(Decisions(options, models), Only(Action::kPreempt, Reason::kTurnIsOver, 0, 1, 1));
  // More than the device can do: turns are as long as allowed.
  for (ModelView& model : models) model.tpot_target = absl::Milliseconds(40);
  models[0].awake_since = kNow - absl::Milliseconds(1990);
  EXPECT_TRUE(Decisions(options, models).empty());
}

TEST(ResidencyPolicyTest, ABackupTakesTheRoomOfOneThatWasUsedLessRecently) {
  std::vector<ModelView> models = {Awake(5, 0, absl::Seconds(9)), Asleep(5, absl::Seconds(1)), Asleep(5),
                                   Asleep(5)};
  for (ModelView& model : models) model.backup_bytes = 4;
  models[2].held_bytes = models[3].held_bytes = 4;
  models[2].last_used = kNow - absl::Seconds(40);
  models[3].last_used = kNow - absl::Seconds(30);
  ResidencyOptions options = Budget(5);
  options.host_memory_budget = 8;
  EXPECT_EQ(Decisions(options, models), Only(Action::kDropBackup, Reason::kHostMemory, 2, 2, 1));
  models[2].state = ModelState::kDeepening;
  EXPECT_TRUE(Decisions(options, models).empty()) << "the room comes";
  models[2] = Asleep(5);
  models[2].level = 2;
  EXPECT_EQ(Decisions(options, models), Only(Action::kSleepIfIdle, Reason::kIdle, 0, 1, 1));
}

TEST(ResidencyPolicyTest, WithoutRoomForItsBackupAModelSleepsAtLevel2) {
  std::vector<ModelView> models = {Awake(5, 0, absl::Seconds(50)), Asleep(5, absl::Seconds(1)), Asleep(5)};
  for (ModelView& model : models) model.backup_bytes = 4;
  models[2].held_bytes = 4;
  models[2].last_used = kNow - absl::Seconds(40);
  ResidencyOptions options = Budget(5);
  options.host_memory_budget = 7;
  EXPECT_EQ(Decisions(options, models), Only(Action::kSleepIfIdle, Reason::kIdle, 0, 2, 1))
      << "the other's backup was used more recently";
  models[0].held_bytes = 3;
  EXPECT_EQ(Decisions(options, models), Only(Action::kSleepIfIdle, Reason::kIdle, 0, 2, 1))
      << "its retained backup lacks a rank's part";
  models[0].compresses_backup = true;
  EXPECT_EQ(Decisions(options, models), Only(Action::kSleepIfIdle, Reason::kIdle, 0, 1, 1))
      << "its backup has been retained, compressed";
}

// A busy model that has to leave under kSlo, and a model that waits.
std::vector<ModelView> TurnIsOver() {
  std::vector<ModelView> models = {Awake(5, 1, {}), Asleep(5, absl::Seconds(1))};
  for (ModelView& model : models) model.backup_bytes = 4;
  models[0].kv_bytes = 3;
  return models;
}

TEST(ResidencyPolicyTest, WhatHostMemoryTheWeightsLeaveIsForTheBlocksOfOpenRequests) {
  ResidencyOptions options = Budget(5, ResidencyPolicy::kSlo);
  std::vector<ModelView> models = TurnIsOver();
  EXPECT_EQ(Decisions(options, models)[0].max_kept_bytes, kNoBudget);
  models[0].kv_bytes = 0;
  EXPECT_EQ(Decisions(options, models)[0].max_kept_bytes, 0) << "it keeps nothing";
  models = TurnIsOver();
  for (const auto& [budget, kept] : {std::pair(4, 0), std::pair(5, 1), std::pair(7, 3), std::pair(100, 3)}) {
    options.host_memory_budget = budget;
    const ResidencyDecision decision = Decisions(options, models)[0];
    EXPECT_EQ(decision.action, Action::kPreempt);
    EXPECT_EQ(decision.level, 1) << budget;
    EXPECT_EQ(decision.max_kept_bytes, kept) << budget;
  }
  options.host_memory_budget = 3;
  EXPECT_EQ(Decisions(options, models)[0].level, 2);
  EXPECT_EQ(Decisions(options, models)[0].max_kept_bytes, 0) << "level 2 keeps nothing";
}

TEST(ResidencyPolicyTest, HostMemoryIsNotPromisedTwice) {
  ResidencyOptions options = Budget(5, ResidencyPolicy::kSlo);
  options.host_memory_budget = 12;
  std::vector<ModelView> models = TurnIsOver();
  // A model that falls asleep takes 4 for weights, and 2 for blocks as was decided.
  models.push_back(Awake(5, 1, {}));
  models[2].state = ModelState::kFallingAsleep;
  models[2].level = 1;
  models[2].backup_bytes = 4;
  models[2].max_kept_bytes = 2;
  options.device_memory_budget = 10;
  models[1].device_bytes = 10;
  models[1].resident_bytes = 0;
  EXPECT_EQ(Decisions(options, models)[0].max_kept_bytes, 12 - 6 - 4);
  // A model's retained bytes of an earlier sleep count for that model.
  models[0].held_bytes = 5;
  models[0].held_kv_bytes = 1;
  EXPECT_EQ(Decisions(options, models)[0].max_kept_bytes, 2);
  // Two that leave at once: both backups come before any block.
  models[2] = Awake(5, 1, {});
  models[2].backup_bytes = 4;
  models[2].kv_bytes = 3;
  models[0].held_bytes = models[0].held_kv_bytes = 0;
  const std::vector<ResidencyDecision> both = Decisions(options, models);
  ASSERT_EQ(both.size(), 2u);
  EXPECT_EQ(both[0].level + both[1].level, 2);
  EXPECT_EQ(both[0].max_kept_bytes + both[1].max_kept_bytes, 12 - 8);
}

TEST(ResidencyPolicyTest, OneThatDrainsKeepsItsShareWhenItIsHurried) {
  ResidencyOptions options = Budget(5);
  options.host_memory_budget = 6;
  std::vector<ModelView> models = {Awake(5, 3, {}), Asleep(5, absl::Seconds(20))};
  models[0].state = ModelState::kDraining;
  models[0].level = 1;
  models[0].backup_bytes = 4;
  models[0].kv_bytes = 9;
  models[0].max_kept_bytes = 2;
  EXPECT_EQ(Decisions(options, models)[0].max_kept_bytes, 2);
  options.host_memory_budget = 8;
  EXPECT_EQ(Decisions(options, models)[0].max_kept_bytes, 4);
}

TEST(ResidencyPolicyTest, AnOperatorsSleepKeepsWhatTheBudgetLeaves) {
  std::vector<ModelView> models = TurnIsOver();
  models[1].held_bytes = 4;
  ResidencyOptions options = Budget(5);
  EXPECT_EQ(MaxKeptBytes(options, models, 0), kNoBudget);
  options.host_memory_budget = 10;
  EXPECT_EQ(MaxKeptBytes(options, models, 0), 2);
  options.host_memory_budget = 7;
  EXPECT_EQ(MaxKeptBytes(options, models, 0), 0);
}

TEST(ResidencyPolicyTest, TheNextModelsWeightsAreReadWhileAnotherOneRuns) {
  ModelView busy = Awake(5, 1, {});
  busy.awake_since = kNow;
  std::vector<ModelView> models = {busy, Asleep(5, absl::Seconds(3)), Asleep(5, absl::Seconds(2)), Asleep(5)};
  EXPECT_TRUE(Decisions(Budget(5), models).empty()) << "their weights are on the host";
  models[1].level = 1;
  models[1].reads_backup = true;
  EXPECT_EQ(Decisions(Budget(5), models), Only(Action::kPrefetch, Reason::kRequestsWait, 1, 1, 1));
  for (ModelView& model : models) model.level = 2;
  EXPECT_EQ(Decisions(Budget(5), models), Only(Action::kPrefetch, Reason::kRequestsWait, 1, 2, 1));
  models[1].prefetched = true;
  EXPECT_TRUE(Decisions(Budget(5), models).empty()) << "once in a sleep, and the second in the row waits";
  models[1].held_asleep = true;
  EXPECT_EQ(Decisions(Budget(5), models), Only(Action::kPrefetch, Reason::kRequestsWait, 2, 2, 2));
  EXPECT_EQ(Decisions(Budget(10), models), Wakes(2)) << "it reads them itself";
}

TEST(ResidencyPolicyTest, ModelsThatNeverFitAreFound) {
  ModelView pinned = Asleep(6);
  pinned.pinned = true;
  EXPECT_EQ(FindModelThatNeverFits(Budget(10), {Asleep(4), pinned, Asleep(4)}), std::nullopt);
  EXPECT_EQ(FindModelThatNeverFits(Budget(10), {Asleep(4), pinned, Asleep(5)}), 2);
  EXPECT_EQ(FindModelThatNeverFits(Budget(10), {pinned, pinned}), 1);
  EXPECT_EQ(FindModelThatNeverFits(ResidencyOptions(), {pinned, pinned}), std::nullopt);
}

}  // namespace
}  // namespace somnus
