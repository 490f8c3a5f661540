#include "coordinator/several_models/host_memory.h"

#include <gtest/gtest.h>

namespace somnus {
namespace {

ModelView Awake() {
  ModelView model{.state = ModelState::kAwake, .backup_bytes = 4};
  return model;
}

// The backup was used so many seconds ago.
ModelView BackedUp(int unused_for) {
  ModelView model{.state = ModelState::kAsleep, .level = 1};
  model.backup_bytes = model.held_bytes = 4;
  model.last_used = absl::Seconds(1000 - unused_for);
  return model;
}

ResidencyOptions HostBudget(int64_t bytes) {
  ResidencyOptions options{.host_memory_budget = bytes};
  return options;
}

TEST(HostMemoryTest, ABackupThatFitsMayBeMadeAtOnce) {
  EXPECT_TRUE(PlanBackupRoom(ResidencyOptions(), {Awake(), BackedUp(1)}, 0).is_free);
  EXPECT_TRUE(PlanBackupRoom(HostBudget(8), {Awake(), BackedUp(1)}, 0).is_free);
  EXPECT_FALSE(PlanBackupRoom(HostBudget(7), {Awake(), BackedUp(1)}, 0).is_free);
  ModelView retains = Awake();
  retains.held_bytes = 3;
  retains.compresses_backup = true;
  EXPECT_TRUE(PlanBackupRoom(HostBudget(3), {retains}, 0).is_free);
}

TEST(HostMemoryTest, ABackupWithoutThePartOfALostRankIsMadeWholeAgain) {
  ModelView retains = Awake();
  retains.held_bytes = 3;
  EXPECT_TRUE(PlanBackupRoom(HostBudget(4), {retains}, 0).is_free);
  const BackupRoom room = PlanBackupRoom(HostBudget(3), {retains}, 0);
  EXPECT_FALSE(room.is_free);
  EXPECT_EQ(room.needed, 1);
}

TEST(HostMemoryTest, CopiesOfAdaptersTakeTheirPartOfTheBudgetAndStay) {
  ModelView adapted = Awake(), other = BackedUp(1);
  adapted.adapter_bytes = 2;
  other.adapter_bytes = 1;
  EXPECT_TRUE(PlanBackupRoom(HostBudget(11), {adapted, other}, 0).is_free);
  const BackupRoom room = PlanBackupRoom(HostBudget(10), {adapted, other}, 0);
  EXPECT_FALSE(room.is_free);
  EXPECT_EQ(room.drops, std::vector<int>{1}) << "the backup gives way, and its model's adapters do not";
  EXPECT_EQ(MissingForBackup(adapted), 4) << "adapters are no part of a backup";
  EXPECT_EQ(MostForBackup(HostBudget(10), {adapted, other}, 0), 7);
}

TEST(HostMemoryTest, BackupsGiveWayTheLeastRecentlyUsedFirst) {
  BackupRoom room = PlanBackupRoom(HostBudget(12), {Awake(), BackedUp(1), BackedUp(3), BackedUp(2)}, 0);
  EXPECT_FALSE(room.is_free);
  EXPECT_EQ(room.drops, std::vector<int>{2});
  EXPECT_EQ(room.missing, 0);
  room = PlanBackupRoom(HostBudget(10), {Awake(), BackedUp(1), BackedUp(3), BackedUp(2)}, 0);
  EXPECT_EQ(room.drops, (std::vector<int>{2, 3}));
}

TEST(HostMemoryTest, WhatIsBeingReleasedIsWaitedFor) {
  ModelView deepens = BackedUp(1);
  deepens.state = ModelState::kDeepening;
  const BackupRoom room = PlanBackupRoom(HostBudget(4), {Awake(), deepens}, 0);
  EXPECT_FALSE(room.is_free);
  EXPECT_EQ(room.missing, 0);
  EXPECT_TRUE(room.drops.empty());
}

TEST(HostMemoryTest, ABackupThatIsWantedStays) {
  ModelView asked = BackedUp(3), waits = BackedUp(2);
  asked.level_is_asked = true;
  waits.open_requests = 1;
  EXPECT_FALSE(MayDropBackup(asked));
  EXPECT_FALSE(MayDropBackup(waits));
  const BackupRoom room = PlanBackupRoom(HostBudget(9), {Awake(), asked, waits}, 0);
  EXPECT_EQ(room.needed, 4);
  EXPECT_EQ(room.missing, 3);
  EXPECT_TRUE(room.drops.empty());
}

TEST(HostMemoryTest, ABackupThatIsPromisedIsNotFree) {
  ModelView promised = Awake();
  promised.is_promised_backup = true;
  promised.max_kept_bytes = 2;
  EXPECT_EQ(FreeHostBytes(HostBudget(10), {promised, Awake()}), 4);
  EXPECT_TRUE(PlanBackupRoom(HostBudget(10), {promised, Awake()}, 1).is_free);
  EXPECT_FALSE(PlanBackupRoom(HostBudget(9), {promised, Awake()}, 1).is_free);
}

}  // namespace
}  // namespace somnus
