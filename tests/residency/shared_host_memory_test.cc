// Several engines that share host memory: the order in which backups give way, and that an operator's level
// stays.

#include "tests/residency/shared_devices_fixture.h"

namespace somnus {
namespace {

using SharedHostMemoryTest = SharedDevicesTest;

TEST_F(SharedHostMemoryTest, ABackupThatALossHasTakenLeavesRoomForAnotherOne) {
  retains_backups_ = true;
  host_memory_budget_ = kBytes;
  Start(3, 2);
  models_[0].executor->SetRecovery(FakeExecutor::Recovery::kSucceeds);
  ExpectExact(Submit(0, "a"));
  EXPECT_EQ(engine(0)->Stats().host_bytes.at("weights"), kBytes) << "it is retained";
  models_[0].executor->Lose(absl::UnavailableError("rank 1 was killed"));
  while (engine(0)->Stats().num_recoveries == 0) absl::SleepFor(absl::Milliseconds(1));
  ExpectExact(Submit(0, "b"));
  ExpectExact(Submit(1, "c"));
  absl::MutexLock lock(&mu_);
  const auto slept =
      std::find_if(decisions_.begin(), decisions_.end(), [](const ResidencyDecision& decision) {
        return decision.model == 2 && decision.action == ResidencyAction::kSleepIfIdle;
      });
  ASSERT_NE(slept, decisions_.end());
  EXPECT_EQ(slept->level, 1);
}

// All models sleep at level 1, though the budget has no room for a single byte.
TEST_F(SharedHostMemoryTest, CheckpointsThatAreTheBackupTakeNoHostMemory) {
  backup_memory_ = BackupMemory::kOnlyCopy;
  host_memory_budget_ = 0;
  Start(3, 1);
  EXPECT_EQ(engine(0)->Stats().sleep_level, 1);
  EXPECT_EQ(engine(1)->Stats().sleep_level, 1);
  ExpectExact(Submit(0, "a"));
  ASSERT_TRUE(engine(0)->Sleep({.level = 1}).ok());
  EXPECT_EQ(engine(0)->Stats().sleep_level, 1);
}

// As on a disk of spill files that is full: the model that waits must not wait for ever.
TEST_F(SharedHostMemoryTest, ASleepWhoseBackupFindsNoRoomBecomesLevel2) {
  Start(2, 1);
  models_[1].executor->FailNextLifecycleCall(absl::ResourceExhaustedError("no room in the spill file"));
  ExpectExact(Submit(0, "a"));
  EXPECT_EQ(engine(1)->Stats().sleep_level, 2);
  ExpectExact(Submit(1, "b"));
  EXPECT_EQ(engine(0)->Stats().sleep_level, 1);
}

TEST_F(SharedHostMemoryTest, AnUpdatesWeightsTakeHostMemoryWhateverTheBackup) {
  backup_memory_ = BackupMemory::kOnlyCopy;
  host_memory_budget_ = kBytes - 1;
  Start(2, 1);
  absl::StatusOr<std::unique_ptr<WeightUpdate>> update = engine(1)->BeginWeightUpdate({});
  ASSERT_TRUE(update.ok()) << update.status();
  ASSERT_TRUE((*update)->Finish().ok());
  const absl::Status refused = engine(1)->Sleep({.level = 1}).status();
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
}

TEST_F(SharedHostMemoryTest, AnOperatorsSleepAtLevel1MakesRoomForItsBackup) {
  retains_backups_ = true;
  host_memory_budget_ = kBytes;
  Start(3, 2);
  EXPECT_EQ(engine(0)->Stats().sleep_level, 1);
  EXPECT_EQ(engine(1)->Stats().sleep_level, 2) << "there is one backup's room";
  ASSERT_TRUE(engine(2)->Sleep({.level = 1}).ok());
  EXPECT_EQ(engine(2)->Stats().sleep_level, 1);
  EXPECT_EQ(engine(0)->Stats().sleep_level, 2);
  EXPECT_TRUE(Decided(ResidencyAction::kDropBackup, 0));
}

TEST_F(SharedHostMemoryTest, TheLevelThatAnOperatorHasAskedForStays) {
  retains_backups_ = true;
  host_memory_budget_ = kBytes;
  Start(3, 2);
  ASSERT_TRUE(engine(2)->Sleep({.level = 1}).ok());
  ExpectExact(Submit(0, "a"));
  const absl::Status refused = engine(0)->Sleep({.level = 1}).status();
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  EXPECT_NE(refused.message().find("take 100 bytes of host memory, and 100 are missing"), std::string::npos)
      << refused;
  EXPECT_EQ(engine(0)->state(), EngineState::kAwake);
  ExpectExact(Submit(0, "b"));
  EXPECT_TRUE(engine(0)->Sleep({.level = 1, .tags = {"kv_cache"}}).ok()) << "which needs no backup";
  EXPECT_TRUE(engine(0)->Sleep({.level = 2}).ok());
  EXPECT_EQ(engine(2)->Stats().sleep_level, 1);
  ASSERT_TRUE(engine(2)->WakeUp({}).ok());
  ASSERT_TRUE(engine(2)->Sleep({.level = 2}).ok());
  ASSERT_TRUE(engine(0)->WakeUp({}).ok());
  EXPECT_TRUE(engine(0)->Sleep({.level = 1}).ok()) << "the other one's backup is gone";
}

}  // namespace
}  // namespace somnus
