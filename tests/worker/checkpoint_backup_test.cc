// Sleeps at level 1 whose backup is the checkpoint itself: their reports, and that nothing but the files that
// were read comes back.

#include "worker/checkpoint_backup.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/worker/weights_test.h"

namespace somnus {
namespace {

using testing::HasSubstr;

constexpr int64_t kBytes = FakeRunner::kBytes;

// The worker's transitions and their reports.
class CheckpointBackupTest : public WeightsTest {
 protected:
  void SetUp() override { MakeAwake(v1::LOAD_FORMAT_AUTO, v1::BACKUP_POLICY_FILE); }

  // The report of the weights after a sleep.
  v1::TagReport Slept(int level) {
    const absl::StatusOr<v1::CommitResponse> response = Sleep(worker_, level);
    EXPECT_TRUE(response.ok()) << response.status();
    return response.ok() ? response->tags().at("weights") : v1::TagReport();
  }
  v1::TagReport Woken() {
    const absl::StatusOr<v1::CommitResponse> response = WakeUp(worker_);
    EXPECT_TRUE(response.ok()) << response.status();
    return response.ok() ? response->tags().at("weights") : v1::TagReport();
  }
  // The state of the weights, as in GetStatus.
  int64_t FileBytes() { return worker_.GetStatus().file_bytes_by_tag().at("weights"); }
  int64_t HostBytes() { return worker_.GetStatus().host_bytes_by_tag().at("weights"); }
  int Level() { return worker_.Snapshot().sleep_level(); }
  void ExpectChangedFiles(const absl::Status& status, const std::string& why) {
    ExpectRefused(status, "the checkpoint is the backup of the weights that sleep, and has changed: ");
    ExpectRefused(status, why);
    EXPECT_EQ(Level(), 1);
    EXPECT_EQ(worker_.GetStatus().bytes_by_tag().at("weights"), 0) << "what was mapped is released";
    EXPECT_EQ(FileBytes(), kBytes);
  }
};

TEST_F(CheckpointBackupTest, ASleepCopiesNothingAndTheWakeUpReadsTheFiles) {
  for (int i = 1; i <= 2; ++i) {
    v1::PlanRequest plan;
    plan.set_group_epoch(1);
    *plan.mutable_transition() = TransitionOf(1);
    EXPECT_EQ(worker_.Plan(plan)->copy_bytes(), 0);
    const v1::TagReport slept = Slept(1);
    EXPECT_EQ(slept.freed_bytes(), kBytes);
    EXPECT_EQ(slept.backed_up_bytes(), kBytes);
    EXPECT_EQ(slept.file_bytes(), kBytes);
    EXPECT_EQ(slept.host_bytes(), 0);
    EXPECT_EQ(slept.discarded_bytes(), 0);
    EXPECT_EQ(slept.resident_bytes(), 0);
    EXPECT_EQ(Level(), 1);
    EXPECT_EQ(FileBytes(), kBytes);
    EXPECT_EQ(HostBytes(), 0);
    EXPECT_EQ(state(), kFirst);

    plan.mutable_transition()->set_sleep_level(0);
    plan.mutable_transition()->set_skip_weights_load(true);  // as of every wake-up from level 1
    EXPECT_TRUE(worker_.Plan(plan)->reads_weights()) << "which is what takes time";
    const v1::TagReport woken = Woken();
    EXPECT_EQ(woken.mapped_bytes(), kBytes);
    EXPECT_EQ(woken.backed_up_bytes(), 0);
    EXPECT_EQ(woken.file_bytes(), 0);
    EXPECT_EQ(FileBytes(), 0);
    EXPECT_EQ(control_.reloads, i);
    EXPECT_EQ(state(), kFirst);
    EXPECT_EQ(Number(), kLoaded);
  }
}

TEST_F(CheckpointBackupTest, AWakeUpThatNeedNotReadDiscardedWeightsStillRestoresABackup) {
  Slept(1);
  v1::Transition wake = TransitionOf(0);
  wake.set_skip_weights_load(true);
  ASSERT_TRUE(RunTransition(worker_, wake).ok());
  EXPECT_EQ(control_.reloads, 1);
  EXPECT_EQ(state(), kFirst);
  EXPECT_EQ(Number(), kLoaded);
}

TEST_F(CheckpointBackupTest, OtherTagsSleepWithoutIt) {
  ASSERT_TRUE(RunTransition(worker_, TransitionOf(1, {"kv_cache"})).ok());
  EXPECT_EQ(FileBytes(), 0);
  Slept(1);
  EXPECT_EQ(FileBytes(), kBytes);
  ASSERT_TRUE(WakeUp(worker_, {"kv_cache", "workspace"}).ok());
  EXPECT_EQ(FileBytes(), kBytes);
  EXPECT_EQ(control_.reloads, 0);
  ASSERT_TRUE(WakeUp(worker_, {"weights"}).ok());
  EXPECT_EQ(FileBytes(), 0);
  EXPECT_EQ(Number(), kLoaded);
}

TEST_F(CheckpointBackupTest, AChangedCheckpointIsNeverServed) {
  Slept(1);
  ++control_.touches;
  for (int i = 0; i < 2; ++i) ExpectChangedFiles(WakeUp(worker_).status(), "fake was modified");
  EXPECT_EQ(control_.reloads, 0);
  EXPECT_EQ(worker_.Snapshot().state(), "asleep");
  --control_.touches;  // as before
  Woken();
  EXPECT_EQ(Number(), kLoaded);
}

// A newcomer of a group that sleeps with copies in host memory: the checkpoint is the backup all the same.
class AsleepFromTheLoadTest : public CheckpointBackupTest {
 protected:
  void SetUp() override {
    ASSERT_TRUE(BeginEpoch(worker_, 1).ok());
    v1::LoadModelRequest request = LoadRequest();
    request.set_backup(v1::BACKUP_POLICY_RETAIN);
    request.set_sleep_level(1);
    for (const char* tag : {"weights", "kv_cache", "workspace"}) request.add_asleep_tags(tag);
    Load(request);
  }
};

TEST_F(AsleepFromTheLoadTest, TheWakeUpReadsTheFiles) {
  EXPECT_EQ(worker_.GetStatus().bytes_by_tag().at("weights"), 0);
  EXPECT_EQ(FileBytes(), kBytes);
  Woken();
  EXPECT_EQ(control_.reloads, 1);
  EXPECT_EQ(Number(), kLoaded);
}

TEST_F(AsleepFromTheLoadTest, AChangedCheckpointIsNeverServed) {
  ++control_.touches;
  ExpectChangedFiles(WakeUp(worker_).status(), "fake was modified");
  EXPECT_EQ(control_.reloads, 0);
  --control_.touches;  // as before
  Woken();
  EXPECT_EQ(Number(), kLoaded);
}

TEST_F(CheckpointBackupTest, AFileThatIsGoneIsAChangeToo) {
  Slept(1);
  control_.stamp_error = absl::NotFoundError("model.safetensors: cannot stat");
  ExpectChangedFiles(WakeUp(worker_).status(), "model.safetensors: cannot stat");
  EXPECT_EQ(control_.reloads, 0);
}

TEST_F(CheckpointBackupTest, AChangeWhileItIsReadUndoesTheWakeUp) {
  Slept(1);
  control_.on_reload = [this] { ++control_.touches; };
  ExpectChangedFiles(WakeUp(worker_).status(), "fake was modified");
  control_.on_reload = [this] {
    ++control_.touches;
    control_.reload_error = absl::DataLossError("the file was cut");
  };
  --control_.touches;
  ExpectChangedFiles(WakeUp(worker_).status(), "fake was modified");
  control_.on_reload = nullptr;
  EXPECT_EQ(control_.reloads, 2);
}

// A file that was changed during its load no longer holds the loaded bytes.
TEST_F(CheckpointBackupTest, AChangeAfterTheLoadBeganIsFoundAtTheWakeUp) {
  control_.on_reload = [this] { ++control_.touches; };
  ASSERT_TRUE(Reload("", 2).ok());
  control_.on_reload = nullptr;
  Slept(1);
  ExpectRefused(WakeUp(worker_).status(), "fake was modified");
}

TEST_F(CheckpointBackupTest, Level2GivesTheLostBackupUp) {
  Slept(1);
  ++control_.touches;
  EXPECT_FALSE(WakeUp(worker_).ok());
  const v1::TagReport deeper = Slept(2);
  EXPECT_EQ(deeper.discarded_bytes(), kBytes);
  EXPECT_EQ(deeper.backed_up_bytes(), 0);
  EXPECT_EQ(deeper.file_bytes(), 0);
  EXPECT_EQ(Level(), 2);
  EXPECT_EQ(FileBytes(), 0);
  Woken();
  EXPECT_EQ(state(), kFirst) << "touched, but the same by its fingerprint";
  EXPECT_EQ(Number(), kLoaded);
  Slept(1);
  Woken();
  EXPECT_EQ(Number(), kLoaded) << "the stamp is that of the last reading";
}

TEST_F(CheckpointBackupTest, AReloadReadsWhatIsThereNow) {
  Slept(1);
  ++control_.touches;
  control_.changed_files = ", changed";
  Slept(2);
  ExpectRefused(WakeUp(worker_).status(), "somnus reload-weights reads what is there now");
  v1::Transition wake = TransitionOf(0);
  wake.set_skip_weights_load(true);
  ASSERT_TRUE(RunTransition(worker_, wake).ok());
  EXPECT_TRUE(worker_.Snapshot().weights_stale());
  ASSERT_TRUE(Reload("other", 2).ok());
  EXPECT_EQ(FileBytes(), 0);
  Slept(1);
  EXPECT_EQ(FileBytes(), kBytes);
  Woken();
  EXPECT_EQ(state(), (State{2, false, "fingerprint of other, changed"}));
  EXPECT_EQ(Number(), kLoaded);
}

TEST_F(CheckpointBackupTest, WeightsOfAnUpdateAreKeptUntilTheWakeUp) {
  ASSERT_EQ(Update("u", 3, 2), absl::OkStatus());
  ++control_.touches;  // changes of the files do not matter
  const v1::TagReport slept = Slept(1);
  EXPECT_EQ(slept.backed_up_bytes(), kBytes);
  EXPECT_EQ(slept.host_bytes(), kBytes);
  EXPECT_EQ(slept.file_bytes(), 0);
  EXPECT_EQ(HostBytes(), kBytes);
  Woken();
  EXPECT_EQ(HostBytes(), 0);
  EXPECT_EQ(state(), (State{2, false, "update u"}));
  EXPECT_EQ(Number(), 3);
  EXPECT_EQ(control_.reloads, 0);
  ASSERT_TRUE(Reload("", 3).ok());
  EXPECT_EQ(Slept(1).file_bytes(), kBytes) << "a checkpoint has them again";
  Woken();
  EXPECT_EQ(Number(), kLoaded);
}

TEST_F(CheckpointBackupTest, StaleWeightsHaveNoBackup) {
  ASSERT_EQ(Begin("u"), absl::OkStatus());
  const v1::TagReport slept = Slept(1);
  EXPECT_EQ(slept.backed_up_bytes(), 0);
  EXPECT_EQ(slept.discarded_bytes(), kBytes);
  EXPECT_EQ(FileBytes(), 0);
  EXPECT_EQ(Level(), 2);
}

TEST_F(CheckpointBackupTest, WhatIsAbortedHasChangedNothing) {
  ASSERT_EQ(worker_.Prepare(PrepareOf(TransitionOf(1), 1)), absl::OkStatus());
  ASSERT_EQ(worker_.AbortTransition(AbortOf(1)), absl::OkStatus());
  EXPECT_EQ(FileBytes(), 0);
  EXPECT_EQ(Number(), kLoaded);
  Slept(1);
  ASSERT_EQ(worker_.Prepare(PrepareOf(TransitionOf(0), 1'000'000)), absl::OkStatus());
  ASSERT_EQ(worker_.AbortTransition(AbortOf(1'000'000)), absl::OkStatus());
  EXPECT_EQ(FileBytes(), kBytes);
  EXPECT_EQ(Level(), 1);
  ASSERT_EQ(worker_.Prepare(PrepareOf(TransitionOf(0), 1'000'001)), absl::OkStatus());
  ASSERT_TRUE(worker_.Commit(CommitOf(1'000'001)).ok());
  EXPECT_EQ(Number(), kLoaded);
}

TEST_F(CheckpointBackupTest, ItOutlivesAnEpoch) {
  Slept(1);
  const absl::StatusOr<v1::WorkerSnapshot> snapshot = BeginEpoch(worker_, 2);
  ASSERT_TRUE(snapshot.ok()) << snapshot.status();
  EXPECT_EQ(snapshot->sleep_level(), 1);
  EXPECT_EQ(FileBytes(), kBytes);
  ASSERT_EQ(worker_.JoinGroup(JoinRequest(0, 1, "", 2)), absl::OkStatus());
  ASSERT_TRUE(WakeUp(worker_, {}, 2).ok());
  last_step_ = 0;
  EXPECT_EQ(Number(2), kLoaded);
}

}  // namespace
}  // namespace somnus
